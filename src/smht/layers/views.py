"""Per-head, separate and fused views of an attention layer's weights (seed 002), read and written exactly.

The same numbers in the three shapes that programs keep them in, `x · W` in all of them:

| view | query, key, value | output |
|---|---|---|
| per head | three of `[H, D, K]`: head `h` reads all channels | `[H, K, D]` |
| separate | three of `[D, D]`: the heads side by side | `[D, D]` |
| fused | one of `[D, 3·D]`: query, key, value side by side | `[D, D]` |

A split layer keeps the blocks on the diagonal alone. Its views have zeros elsewhere, in the channels' residual order
(so a shuffled block's are permuted), and it can load only what has zeros there.
"""

from dataclasses import dataclass
from typing import Self

import torch
from torch import Tensor, nn

from smht.errors import UsageError
from smht.layers.attention import MultiHeadAttention
from smht.layers.projection import SplitLinear

_NAMES = ("q_proj", "k_proj", "v_proj", "o_proj")


@dataclass(frozen=True)
class PerHeadWeights:
    """Matrices of each head: `query`, `key`, `value` `[H, D, K]`, `output` `[H, K, D]`."""

    query: Tensor
    key: Tensor
    value: Tensor
    output: Tensor


@dataclass(frozen=True)
class SeparateWeights:
    """One matrix for each projection, `[D, D]`."""

    query: Tensor
    key: Tensor
    value: Tensor
    output: Tensor

    @classmethod
    def of(cls, attention: MultiHeadAttention) -> Self:
        """The layer's weights; a copy."""
        query, key, value, output = (read_dense(attention, name) for name in _NAMES)
        return cls(query, key, value, output)

    @classmethod
    def from_per_head(cls, weights: PerHeadWeights) -> Self:
        """Heads side by side."""
        query, key, value = (torch.cat(list(w), dim=1) for w in (weights.query, weights.key, weights.value))
        return cls(query, key, value, torch.cat(list(weights.output), dim=0))

    @classmethod
    def from_fused(cls, qkv: Tensor, output: Tensor) -> Self:
        """From `[D, 3·D]` and `[D, D]`.

        Raises:
            UsageError: `qkv` is no such matrix.
        """
        if qkv.dim() != 2 or qkv.shape[1] != 3 * qkv.shape[0]:
            raise UsageError(f"a fused matrix is [D, 3·D], query, key and value side by side; got {list(qkv.shape)}")
        query, key, value = qkv.chunk(3, dim=1)
        return cls(query, key, value, output)

    def to_per_head(self, num_heads: int) -> PerHeadWeights:
        """Head by head."""
        query, key, value = (torch.stack(w.chunk(num_heads, dim=1)) for w in (self.query, self.key, self.value))
        return PerHeadWeights(query, key, value, torch.stack(self.output.chunk(num_heads, dim=0)))

    def to_fused(self) -> tuple[Tensor, Tensor]:
        """`[D, 3·D]` and `[D, D]`."""
        return torch.cat([self.query, self.key, self.value], dim=1), self.output

    def load_into(self, attention: MultiHeadAttention) -> None:
        """Put these weights into a layer, split or dense; all of them or none.

        Raises:
            UsageError: another shape, or numbers other than 0 where a split layer has no weights.
        """
        matrices = dict(zip(_NAMES, (self.query, self.key, self.value, self.output), strict=True))
        for name, matrix in matrices.items():
            _check(attention, name, matrix)
        for name, matrix in matrices.items():
            _write_dense(attention, name, matrix)


@torch.no_grad()
def read_dense(attention: MultiHeadAttention, name: str) -> Tensor:
    """The projection called `name` as the full matrix `[D, D]` that it stands for, channels in residual order."""
    projection = getattr(attention, name)
    if not isinstance(projection, SplitLinear):
        return projection.weight.T.clone()
    matrix = torch.block_diag(*projection.weight)
    inverse = _block_order(attention, name, inverse=True)
    if inverse is None:
        return matrix
    return matrix[:, inverse] if name == "o_proj" else matrix[inverse]


@torch.no_grad()
def _write_dense(attention: MultiHeadAttention, name: str, matrix: Tensor) -> None:
    projection = getattr(attention, name)
    if isinstance(projection, SplitLinear):
        matrix = _to_block_order(attention, name, matrix)
        projection.weight.copy_(torch.stack(_diagonal(matrix, projection.num_heads)))
    else:
        projection.weight.copy_(matrix.T)


def _check(attention: MultiHeadAttention, name: str, matrix: Tensor) -> None:
    projection: nn.Module = getattr(attention, name)
    width = attention.num_heads * attention.head_dim
    if matrix.shape != (width, width):
        raise UsageError(f"{name} takes a matrix [D, D] = {[width, width]}, got {list(matrix.shape)}")
    if isinstance(projection, SplitLinear):
        matrix = _to_block_order(attention, name, matrix)
        rest = matrix - torch.block_diag(*_diagonal(matrix, projection.num_heads))
        if rest.any():
            row, column = (int(i) for i in rest.nonzero()[0])
            head = (row if name == "o_proj" else column) // attention.head_dim
            raise UsageError(
                f"{name} is split and this matrix is not: head {head} has weights outside its own channels; "
                "load it into a dense layer"
            )


def _to_block_order(attention: MultiHeadAttention, name: str, matrix: Tensor) -> Tensor:
    """Rows (of the output projection: columns) from residual order to the block's."""
    order = _block_order(attention, name, inverse=False)
    if order is None:
        return matrix
    return matrix[:, order] if name == "o_proj" else matrix[order]


def _block_order(attention: MultiHeadAttention, name: str, inverse: bool) -> Tensor | None:
    shuffle = attention.output_shuffle if name == "o_proj" else attention.input_shuffle
    if shuffle is None:
        return None
    return shuffle.inverse if inverse else shuffle.order


def _diagonal(matrix: Tensor, num_heads: int) -> list[Tensor]:
    """The blocks on the diagonal of `[D, D]`, `H` of `[K, K]`."""
    size = matrix.shape[0] // num_heads
    return [matrix[h * size : (h + 1) * size, h * size : (h + 1) * size] for h in range(num_heads)]
