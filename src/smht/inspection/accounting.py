"""What each part of a model costs: parameters, multiply-adds, cache. Closed forms; no model is built.

Seed 000, section 5, for any `SmhtConfig`. `D` hidden size, `F` feed-forward width, `N` layers, `V` vocabulary,
`T` tokens of the context; `h` is the number of heads `H` where a projection is split, and 1 where it is dense.

| part | parameters | multiply-adds a token | cache values a token |
|---|---|---|---|
| token embedding | V·D | | |
| position embedding | max_position_embeddings·D | | |
| query, key, value | N·3·D²/h | N·3·D²/h | N·2·D |
| attention scores and mixing | | N·2·T·D | |
| attention output | N·D²/h | N·D²/h | |
| feed-forward | N·2·D·F/h | N·2·D·F/h | |
| layer norms | N·4·D | | |
| final layer norm | 2·D | | |
| language-model head | V·D, or 0 if tied | V·D | |

A projection with a bias has as many parameters more as it has outputs.

Multiply-adds are those of the matrix products in a forward pass, half of what PyTorch's `FlopCounterMode`
counts: look-ups, biases, norms, softmax and activations are left out, and attention multiplies all `T·T` pairs of
tokens, the masked ones too.
"""

from dataclasses import asdict, dataclass
from typing import Any

import torch

from smht.errors import UsageError, did_you_mean
from smht.models import SmhtConfig


@dataclass(frozen=True)
class Costs:
    """Parameters, multiply-adds a token, and values a token in the key-value cache."""

    parameters: int = 0
    multiply_adds: int = 0
    cache_values: int = 0

    def __add__(self, other: "Costs") -> "Costs":
        return Costs(
            self.parameters + other.parameters,
            self.multiply_adds + other.multiply_adds,
            self.cache_values + other.cache_values,
        )

    def __mul__(self, count: int) -> "Costs":
        return Costs(self.parameters * count, self.multiply_adds * count, self.cache_values * count)


@dataclass(frozen=True)
class Part:
    """A part of a model.

    Attributes:
        name: see the table of this module.
        each: costs of one of it.
        layers: how many blocks have one; None for a part outside the blocks.
    """

    name: str
    each: Costs
    layers: int | None = None

    @property
    def costs(self) -> Costs:
        """Summed over all layers."""
        return self.each * (1 if self.layers is None else self.layers)


@dataclass(frozen=True)
class Accounting:
    """The costs of a model by part; the parts sum to the total.

    Attributes:
        parts: in the order in which a token meets them.
        total: by a formula of its own.
        context: `T`, how many tokens attention looks at.
        causal_attention: multiply-adds a token of attention scores and mixing where masked pairs are left out,
            averaged over the context: N·D·(T + 1).
        dtype: of the keys and values in the cache.

    Raises:
        ValueError: the parts do not sum to the total.
    """

    parts: tuple[Part, ...]
    total: Costs
    context: int
    causal_attention: int
    dtype: torch.dtype

    def __post_init__(self) -> None:
        added = sum((part.costs for part in self.parts), Costs())
        if added != self.total:
            raise ValueError(f"the parts sum to {added}, the whole model is {self.total}")

    def part(self, name: str) -> Part:
        """The part called `name`.

        Raises:
            UsageError: the model has no such part.
        """
        for part in self.parts:
            if part.name == name:
                return part
        raise UsageError(f"no part is called {name!r}: {did_you_mean(name, (part.name for part in self.parts))}")

    @property
    def cache_bytes(self) -> int:
        """Bytes a token in the key-value cache."""
        return self.total.cache_values * self.dtype.itemsize

    def to_dict(self) -> dict[str, Any]:
        """Plain data for JSON."""
        return {
            "context": self.context,
            "cache_dtype": str(self.dtype).removeprefix("torch."),
            "parts": [
                {"name": part.name, "layers": part.layers, **costs_to_dict(part.costs, self.dtype)}
                for part in self.parts
            ],
            "total": costs_to_dict(self.total, self.dtype),
            "causal_attention_multiply_adds": self.causal_attention,
        }


def costs_to_dict(costs: Costs, dtype: torch.dtype) -> dict[str, int]:
    """The costs by name, with the cache in bytes too."""
    return {**asdict(costs), "cache_bytes": costs.cache_values * dtype.itemsize}


def account(config: SmhtConfig, context: int | None = None, dtype: torch.dtype | None = None) -> Accounting:
    """The costs of the language model that `config` describes, by part.

    Args:
        config: any configuration.
        context: `T`, the number of tokens that attention looks at; `max_position_embeddings` if not given.
        dtype: of keys and values in the cache; the configuration's if not given, and float32 if that has none.

    Raises:
        UsageError: a context of no token, or of more tokens than the model has positions.
    """
    limit = config.max_position_embeddings
    tokens = limit if context is None else context
    if not 1 <= tokens <= limit:
        raise UsageError(f"context = {tokens} must be from 1 to the model's {limit} positions")
    return Accounting(
        parts=_parts(config, tokens),
        total=_total(config, tokens),
        context=tokens,
        causal_attention=config.num_hidden_layers * config.hidden_size * (tokens + 1),
        dtype=dtype or _dtype_of(config),
    )


def _parts(config: SmhtConfig, tokens: int) -> tuple[Part, ...]:
    width, hidden, layers = config.hidden_size, _intermediate_size(config), config.num_hidden_layers
    embedding = config.vocab_size * width
    return (
        Part("token embedding", Costs(parameters=embedding)),
        Part("position embedding", Costs(parameters=config.max_position_embeddings * width)),
        Part("query, key, value", _projection(config, "qkv", width, width) * 3 + Costs(cache_values=2 * width), layers),
        Part("attention scores and mixing", Costs(multiply_adds=2 * tokens * width), layers),
        Part("attention output", _projection(config, "output", width, width), layers),
        Part(
            "feed-forward",
            _projection(config, "feed_forward", width, hidden) + _projection(config, "feed_forward", hidden, width),
            layers,
        ),
        Part("layer norms", Costs(parameters=4 * width), layers),
        Part("final layer norm", Costs(parameters=2 * width)),
        Part("language-model head", Costs(0 if config.tie_word_embeddings else embedding, embedding)),
    )


def _projection(config: SmhtConfig, name: str, inputs: int, outputs: int) -> Costs:
    weights = inputs * outputs // _blocks(config, name)
    return Costs(weights + (outputs if config.projection_bias else 0), weights)


def _total(config: SmhtConfig, tokens: int) -> Costs:
    """Without going by part, so that a part left out or counted twice shows."""
    width, hidden, layers = config.hidden_size, _intermediate_size(config), config.num_hidden_layers
    tables = config.vocab_size * (1 if config.tie_word_embeddings else 2) + config.max_position_embeddings
    qkv, output, feed_forward = (_blocks(config, name) for name in ("qkv", "output", "feed_forward"))
    weights = 3 * width**2 // qkv + width**2 // output + 2 * width * hidden // feed_forward
    biases = (5 * width + hidden) if config.projection_bias else 0
    return Costs(
        parameters=tables * width + layers * (weights + biases) + (2 * layers + 1) * 2 * width,
        multiply_adds=layers * (weights + 2 * tokens * width) + config.vocab_size * width,
        cache_values=2 * layers * width,
    )


def _blocks(config: SmhtConfig, name: str) -> int:
    """`h`: into how many blocks the projection is split."""
    return config.num_attention_heads if name in config.split else 1


def _intermediate_size(config: SmhtConfig) -> int:
    assert config.intermediate_size is not None
    return config.intermediate_size


def _dtype_of(config: SmhtConfig) -> torch.dtype:
    return config.dtype if isinstance(config.dtype, torch.dtype) else torch.float32
