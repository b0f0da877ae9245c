"""Position encodings: how a Transformer knows the order of its tokens.

Without one, a block without a causal mask treats its tokens as a set (seed 001). An encoding acts in one of three
places, and each class overrides the method of its place:

| kind | where it acts | parameters | from |
|---|---|---|---|
| `learned` | added to the embeddings | max_positions·D | seed 000, step 2 |
| `sinusoidal` | added to the embeddings | none | seeds 001 and 004, arXiv:1706.03762 |
| `relative` | added to the scores | 32·H | T5's buckets, arXiv:1910.10683 |
| `rotary` | turns queries and keys | none | arXiv:2104.09864 |
| `none` | nowhere | none | |

Relative and rotary positions compare tokens of one sequence, so they act in self-attention only: between a target and
its source there is no distance.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Self

import torch
from torch import Tensor, nn

from smht.errors import UsageError, did_you_mean
from smht.ops.rotation import rotate as rotate

_BASE = 10_000.0
NUM_BUCKETS = 32
"""Kinds of distance that relative positions tell apart."""
_MAX_DISTANCE = 128


@dataclass(frozen=True)
class Sizes:
    """What an encoding may depend on: how many positions there are, `D`, `H`, and whether attention is causal."""

    max_positions: int
    hidden_size: int
    num_heads: int
    is_causal: bool


class PositionEncoding(nn.Module):
    """No position at all; the other encodings override what they do."""

    @classmethod
    def of(cls, sizes: Sizes) -> Self:  # noqa: ARG003 - others depend on them
        """The encoding for a model of these sizes."""
        return cls()

    def embed(self, positions: Tensor) -> Tensor | None:
        """Positions `[B, T]` to what is added to the embeddings, `[B, T, D]`, if anything."""
        return None

    def rotation(self, positions: Tensor) -> tuple[Tensor, Tensor] | None:
        """Positions `[B, T]` to cosines and sines, `[B, T, K/2]` each, for `rotate`, if queries and keys are turned."""
        return None

    @property
    def bias(self) -> Callable[[Tensor], Tensor] | None:
        """From relative positions (key less query) `[...]` to what is added to the scores, `[H, ...]`, if anything."""
        return None


class LearnedPositions(nn.Embedding, PositionEncoding):
    """A table with a row for each position.

    Args:
        max_positions: rows.
        hidden_size: `D`.
    """

    @classmethod
    def of(cls, sizes: Sizes) -> Self:
        """See `PositionEncoding`."""
        return cls(sizes.max_positions, sizes.hidden_size)

    def embed(self, positions: Tensor) -> Tensor:
        """See `PositionEncoding`."""
        return self(positions)


class TabulatedPositions(PositionEncoding):
    """Encodings that are computed once: a table of sines and one of cosines, no parameters."""

    cosines: Tensor
    sines: Tensor

    def __init__(self, max_positions: int, frequencies: int, width: int) -> None:
        super().__init__()
        self.max_positions, self.frequencies, self.width = max_positions, frequencies, width
        for name, table in self.compute_tables().items():
            self.register_buffer(name, table, persistent=False)

    def compute_tables(self) -> dict[str, Tensor]:
        """Cosines and sines of `position / 10000^(2i / width)`, `[max_positions, frequencies]` each, on the CPU."""
        with torch.device("cpu"):
            positions = torch.arange(self.max_positions, dtype=torch.float64)
            exponents = torch.arange(self.frequencies, dtype=torch.float64) * 2 / self.width
            angles = positions[:, None] / _BASE**exponents
            dtype = torch.get_default_dtype()
            return {"cosines": angles.cos().to(dtype), "sines": angles.sin().to(dtype)}

    def extra_repr(self) -> str:
        """The sizes, for `print(model)`."""
        return f"{self.max_positions}, {self.width}"


class SinusoidalPositions(TabulatedPositions):
    """Fixed waves: `PE[p, 2i] = sin(p / 10000^(2i/D))`, `PE[p, 2i+1] = cos(p / 10000^(2i/D))`.

    Args:
        max_positions: how many positions there are.
        hidden_size: `D`; an odd one has a sine more than cosines.
    """

    def __init__(self, max_positions: int, hidden_size: int) -> None:
        super().__init__(max_positions, frequencies=(hidden_size + 1) // 2, width=hidden_size)

    @classmethod
    def of(cls, sizes: Sizes) -> Self:
        """See `PositionEncoding`."""
        return cls(sizes.max_positions, sizes.hidden_size)

    def embed(self, positions: Tensor) -> Tensor:
        """See `PositionEncoding`."""
        pairs = torch.stack([self.sines[positions], self.cosines[positions]], dim=-1)
        return pairs.flatten(-2)[..., : self.width]


class RotaryPositions(TabulatedPositions):
    """Turns channel `i` with channel `i + K/2` of each query and key by the angle `p / 10000^(2i/K)`.

    The score of two tokens then depends on how far apart they are, not on where they stand.

    Args:
        max_positions: how many positions there are.
        head_dim: `K`, even.

    Raises:
        UsageError: an odd head width.
    """

    def __init__(self, max_positions: int, head_dim: int) -> None:
        if head_dim % 2:
            raise UsageError(f"rotary positions turn channels in pairs, and a head is {head_dim} channels wide")
        super().__init__(max_positions, frequencies=head_dim // 2, width=head_dim)

    @classmethod
    def of(cls, sizes: Sizes) -> Self:
        """See `PositionEncoding`."""
        return cls(sizes.max_positions, sizes.hidden_size // sizes.num_heads)

    def rotation(self, positions: Tensor) -> tuple[Tensor, Tensor]:
        """See `PositionEncoding`."""
        return self.cosines[positions], self.sines[positions]


class RelativePositions(PositionEncoding):
    """A learned number a head for each bucket of distances; distances share buckets the more the longer they are.

    Args:
        num_heads: `H`.
        is_causal: whether keys never stand after their query; otherwise half the buckets are for those that do.
    """

    def __init__(self, num_heads: int, is_causal: bool) -> None:
        super().__init__()
        self.is_causal = is_causal
        self.relative_attention_bias = nn.Embedding(NUM_BUCKETS, num_heads)

    @classmethod
    def of(cls, sizes: Sizes) -> Self:
        """See `PositionEncoding`."""
        return cls(sizes.num_heads, sizes.is_causal)

    @property
    def bias(self) -> Callable[[Tensor], Tensor]:
        """See `PositionEncoding`."""
        return self

    def forward(self, relative: Tensor) -> Tensor:
        """Key positions less query positions `[...]` to what is added to the scores, `[H, ...]`."""
        return self.relative_attention_bias(relative_buckets(relative, self.is_causal)).movedim(-1, 0)


def relative_buckets(relative: Tensor, is_causal: bool) -> Tensor:
    """T5's bucket of each relative position (key less query): exact up to a few, then logarithmic up to 128."""
    buckets = NUM_BUCKETS if is_causal else NUM_BUCKETS // 2
    first = 0 if is_causal else (relative > 0).long() * buckets
    distance = -relative.clamp_max(0) if is_causal else relative.abs()
    exact = buckets // 2
    logarithmic = exact + (
        torch.log(distance.clamp_min(1).float() / exact) / math.log(_MAX_DISTANCE / exact) * (buckets - exact)
    ).long().clamp_max(buckets - exact - 1)
    return first + torch.where(distance < exact, distance, logarithmic)


POSITION_ENCODINGS: dict[str, type[PositionEncoding]] = {
    "learned": LearnedPositions,
    "sinusoidal": SinusoidalPositions,
    "relative": RelativePositions,
    "rotary": RotaryPositions,
    "none": PositionEncoding,
}
"""By kind."""


def make_position_encoding(kind: str, sizes: Sizes) -> PositionEncoding:
    """The encoding called `kind`, a name in `POSITION_ENCODINGS`.

    Raises:
        UsageError: another kind, or rotary positions with an odd head width.
    """
    if kind not in POSITION_ENCODINGS:
        raise UsageError(f"position_embedding = {kind!r}: {did_you_mean(kind, POSITION_ENCODINGS)}")
    return POSITION_ENCODINGS[kind].of(sizes)
