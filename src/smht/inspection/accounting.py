"""What each part of a model costs: parameters, multiply-adds, cache. Closed forms; no model is built.

Seed 000, section 5, for any `SmhtConfig`. `D` hidden size, `F` feed-forward width, `N` layers, `V` vocabulary,
`T` tokens of the context; `h` is the number of heads `H` where a projection is split, and 1 where it is dense.

| part | parameters | multiply-adds a token | cache values a token |
|---|---|---|---|
| token embedding | V·D | | |
| position embedding | max_position_embeddings·D if learned, 32·H if relative | | |
| query, key, value | N·3·D²/h | N·3·D²/h | N·2·D |
| attention scores and mixing | | N·2·T·D | |
| attention output | N·D²/h | N·D²/h | |
| feed-forward | N·2·D·F/h | N·2·D·F/h | |
| layer norms | N·4·D | | |
| final layer norm | 2·D, or 0 if the norms stand after the sums | | |
| language-model head | V·D, or 0 if tied | V·D | |

A projection with a bias has as many parameters more as it has outputs. Where attention is block-sparse, a token is
multiplied with `b` tokens of its block and `⌈T/b⌉` others in place of `T`.

An encoder has no cache and no head. An encoder-decoder has both stacks' parts, with their names in front; a decoder
block has attention to the memory as well, with parts of its own and a third norm. Its multiply-adds are those for one
source and one target token, each text as long as the context; keys and values of the memory are cached for each
source token.

Multiply-adds are those of the matrix products in a forward pass, half of what PyTorch's `FlopCounterMode`
counts: look-ups, biases, norms, softmax and activations are left out, and attention multiplies all `T·T` pairs of
tokens, the masked ones too.
"""

from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import Any

import torch

from smht.errors import UsageError, did_you_mean
from smht.inspection.display import Displayed, Table
from smht.layers.position import NUM_BUCKETS
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


@dataclass(frozen=True, repr=False)
class Accounting(Displayed):
    """The costs of a model by part; the parts sum to the total.

    Attributes:
        parts: in the order in which a token meets them.
        total: by a formula of its own.
        context: `T`, how many tokens attention looks at.
        causal_attention: multiply-adds a token of attention scores and mixing where masked pairs are left out,
            averaged over the context: N·D·(T + 1); None where attention is not causal and full.
        dtype: of the keys and values in the cache.

    Raises:
        ValueError: the parts do not sum to the total.
    """

    parts: tuple[Part, ...]
    total: Costs
    context: int
    causal_attention: int | None
    dtype: torch.dtype

    def __post_init__(self) -> None:
        added = sum((part.costs for part in self.parts), Costs())
        if added != self.total:
            raise ValueError(f"the parts sum to {added}, the whole model is {self.total}")

    def tables(self) -> list[Table]:
        """A row a part."""
        rows = [(part.name, part.layers, part.costs) for part in self.parts]
        headers = ("part", "blocks", "parameters", "multiply-adds a token", "cache values a token")
        cells = [
            (name, "" if layers is None else str(layers), *(f"{cost:,}" for cost in asdict(costs).values()))
            for name, layers, costs in [*rows, ("total", None, self.total)]
        ]
        return [Table(headers, tuple(cells), note=f"attention over {self.context:,} tokens")]

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
        causal_attention=_causal_attention(config, tokens),
        dtype=dtype or _dtype_of(config),
    )


def _causal_attention(config: SmhtConfig, tokens: int) -> int | None:
    if config.stack != "decoder" or config.attention_pattern != "full":
        return None
    return config.num_hidden_layers * config.hidden_size * (tokens + 1)


def _parts(config: SmhtConfig, tokens: int) -> tuple[Part, ...]:
    embedding = config.vocab_size * config.hidden_size
    parts = [Part("token embedding", Costs(parameters=embedding))]
    for stack in stacks_of(config):
        parts += _stack_parts(config, stack, tokens)
    if config.stack != "encoder":
        parts.append(Part("language-model head", Costs(0 if config.tie_word_embeddings else embedding, embedding)))
    return tuple(parts)


@dataclass(frozen=True)
class Stack:
    """A stack of a model: what its parts' names begin with, and how many blocks it has of which kind."""

    prefix: str
    layers: int
    is_cached: bool
    has_memory: bool


def stacks_of(config: SmhtConfig) -> tuple[Stack, ...]:
    """The one stack, or encoder and decoder."""
    if config.stack != "encoder_decoder":
        return (Stack("", config.num_hidden_layers, is_cached=config.stack == "decoder", has_memory=False),)
    assert config.num_decoder_layers is not None
    return (
        Stack("encoder: ", config.num_hidden_layers, is_cached=False, has_memory=False),
        Stack("decoder: ", config.num_decoder_layers, is_cached=True, has_memory=True),
    )


def _stack_parts(config: SmhtConfig, stack: Stack, tokens: int) -> Iterator[Part]:
    width, hidden, layers = config.hidden_size, _intermediate_size(config), stack.layers

    def part(name: str, each: Costs, layers: int | None = None) -> Part:
        return Part(stack.prefix + name, each, layers)

    projection = _projection(config, "qkv", width, width)
    output = _projection(config, "output", width, width)
    cached = Costs(cache_values=2 * width)
    yield part("position embedding", Costs(parameters=_position_parameters(config)))
    yield part("query, key, value", projection * 3 + (cached if stack.is_cached else Costs()), layers)
    yield part("attention scores and mixing", Costs(multiply_adds=_attention_multiply_adds(config, tokens)), layers)
    yield part("attention output", output, layers)
    if stack.has_memory:
        yield part("memory: query, key, value", projection * 3 + cached, layers)
        yield part("memory: attention scores and mixing", Costs(multiply_adds=2 * tokens * width), layers)
        yield part("memory: attention output", output, layers)
    up, down = _projection(config, "feed_forward", width, hidden), _projection(config, "feed_forward", hidden, width)
    yield part("feed-forward", up + down, layers)
    yield part("layer norms", Costs(parameters=(6 if stack.has_memory else 4) * width), layers)
    yield part("final layer norm", Costs(parameters=2 * width if config.norm_placement == "pre" else 0))


def _position_parameters(config: SmhtConfig) -> int:
    if config.position_embedding == "learned":
        return config.max_position_embeddings * config.hidden_size
    return NUM_BUCKETS * config.num_attention_heads if config.position_embedding == "relative" else 0


def _attention_multiply_adds(config: SmhtConfig, tokens: int) -> int:
    """Of scores and mixing in one block, a token; of a sparse pattern with an unfinished block, rounded up."""
    if config.attention_pattern == "full":
        return 2 * tokens * config.hidden_size
    assert config.sparse_block_size is not None
    block = min(config.sparse_block_size, tokens)
    count = -(-tokens // block)
    return -(-2 * config.hidden_size * (block + count) * count * block // tokens)


def _projection(config: SmhtConfig, name: str, inputs: int, outputs: int) -> Costs:
    weights = inputs * outputs // _blocks(config, name)
    return Costs(weights + (outputs if config.projection_bias else 0), weights)


def _total(config: SmhtConfig, tokens: int) -> Costs:
    """Without going by part, so that a part left out or counted twice shows."""
    width, hidden, two_stacks = config.hidden_size, _intermediate_size(config), config.stack == "encoder_decoder"
    decoder_layers = (config.num_decoder_layers or 0) if two_stacks else 0
    layers = config.num_hidden_layers + decoder_layers
    heads = {"encoder": 0}.get(config.stack, 1)
    tables = config.vocab_size * (1 + (0 if config.tie_word_embeddings else heads)) * width
    positions = _position_parameters(config) * (2 if two_stacks else 1)
    qkv, output, feed_forward = (_blocks(config, name) for name in ("qkv", "output", "feed_forward"))
    attention = 3 * width**2 // qkv + width**2 // output
    weights = layers * (attention + 2 * width * hidden // feed_forward) + decoder_layers * attention
    biases = layers * (5 * width + hidden) + decoder_layers * 4 * width if config.projection_bias else 0
    norms = 2 * layers + decoder_layers
    if config.norm_placement == "pre":
        norms += 2 if two_stacks else 1
    scores = layers * _attention_multiply_adds(config, tokens) + decoder_layers * 2 * tokens * width
    cached_layers = {"decoder": layers, "encoder": 0, "encoder_decoder": 2 * decoder_layers}[config.stack]
    return Costs(
        parameters=tables + positions + weights + biases + norms * 2 * width,
        multiply_adds=weights + scores + heads * config.vocab_size * width,
        cache_values=2 * cached_layers * width,
    )


def _blocks(config: SmhtConfig, name: str) -> int:
    """`h`: into how many blocks the projection is split."""
    return config.num_attention_heads if name in config.split else 1


def _intermediate_size(config: SmhtConfig) -> int:
    assert config.intermediate_size is not None
    return config.intermediate_size


def _dtype_of(config: SmhtConfig) -> torch.dtype:
    return config.dtype if isinstance(config.dtype, torch.dtype) else torch.float32
