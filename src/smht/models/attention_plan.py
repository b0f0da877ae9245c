"""How the blocks of one stack attend in one forward pass: mask, attention function, rotation of queries and keys.

Shapes: `B` batch, `T` new tokens, `S` cached and new tokens, `H` heads, `K` head width.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from transformers.cache_utils import Cache
from transformers.masking_utils import create_bidirectional_mask, create_causal_mask, create_masks_for_generate
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

from smht import ops
from smht.errors import UsageError
from smht.layers import AttentionFunction, PositionEncoding, eager_attention
from smht.models.cache_argument import named_cache
from smht.models.configuration import SmhtConfig
from smht.models.positions import cached_tokens, count_positions, real_columns

_WRITTEN_OUT = ("eager", "sdpa")
"""Attention implementations of transformers that take a bias on the scores."""


@dataclass(frozen=True)
class AttentionPlan:
    """What every block of a stack is given.

    Attributes:
        mask: broadcastable to `[B, H, T, S]`: boolean, True where attention is allowed, or added to the scores; or
            what another attention implementation of transformers takes.
        function: computes attention between projected heads.
        rotation: cosines and sines of the tokens' positions, `[B, T, K/2]` each.
    """

    mask: Any
    function: AttentionFunction
    rotation: tuple[Tensor, Tensor] | None = None


def plan_self_attention(
    config: SmhtConfig,
    encoding: PositionEncoding,
    inputs_embeds: Tensor,
    attention_mask: Tensor | None,
    position_ids: Tensor | None,
    positions: Tensor,
    cache: Cache | None,
    is_causal: bool,
) -> AttentionPlan:
    """Self-attention of a stack.

    Args:
        config: the model's.
        encoding: its position encoding.
        inputs_embeds: `[B, T, D]`.
        attention_mask: `[B, S]`, 1 at tokens and 0 at padding; or a prepared 4-D mask.
        position_ids: what the caller gave; only such positions can restart within a row, which tells packed
            sequences apart.
        positions: `[B, T]` or `[1, T]`, given or counted.
        cache: the tokens before these.
        is_causal: whether tokens see only those before them.

    Raises:
        UsageError: an attention implementation that cannot do what the configuration asks for.
    """
    implementation = _implementation(config)
    rotation = encoding.rotation(positions)
    if config.attention_pattern == "block_sparse":
        _refuse_others(implementation, "attention_pattern = 'block_sparse'")
        return _plan_block_sparse(config, encoding, inputs_embeds, attention_mask, position_ids, cache, is_causal)
    if encoding.bias is not None:
        _refuse_others(implementation, "position_embedding = 'relative'")
    function = ALL_ATTENTION_FUNCTIONS.get_interface(implementation, eager_attention)
    arguments = {"config": config, "inputs_embeds": inputs_embeds, "attention_mask": attention_mask}
    if is_causal or cache is not None:
        # Where `is_causal=False` was asked for, transformers itself sees to it.
        mask = create_causal_mask(**arguments, position_ids=position_ids, **named_cache(cache))
    else:
        mask = create_bidirectional_mask(**arguments)
    if encoding.bias is not None:
        mask = _add_bias(mask, encoding.bias, inputs_embeds, cache, is_causal)
    return AttentionPlan(mask, function, rotation)


def plan_cross_attention(
    config: SmhtConfig, inputs_embeds: Tensor, memory: Tensor, memory_mask: Tensor | None
) -> AttentionPlan:
    """Attention from `inputs_embeds` `[B, T, D]` to a memory `[B, S, D]` with mask `[B, S]`: to all of its tokens."""
    mask = create_bidirectional_mask(
        config=config, inputs_embeds=inputs_embeds, attention_mask=memory_mask, encoder_hidden_states=memory
    )
    return AttentionPlan(mask, ALL_ATTENTION_FUNCTIONS.get_interface(_implementation(config), eager_attention))


def generation_mask(config: SmhtConfig, attention_mask: Tensor | None, **kwargs: Any) -> Any:
    """The mask that `generate` prepares for a static cache: transformers' own, but the plain `[B, S]` for a pattern.

    Args:
        config: the model's.
        attention_mask: `[B, S]`, 1 at tokens and 0 at padding, or None.
        **kwargs: see `transformers.masking_utils.create_masks_for_generate`.
    """
    if config.attention_pattern == "block_sparse":
        return attention_mask
    return create_masks_for_generate(config=config, attention_mask=attention_mask, **kwargs)


def _implementation(config: SmhtConfig) -> str:
    assert config._attn_implementation is not None
    return config._attn_implementation


def _refuse_others(implementation: str, what: str) -> None:
    if implementation not in _WRITTEN_OUT:
        raise UsageError(f"{what} needs attn_implementation = 'sdpa' or 'eager', not {implementation!r}")


def _add_bias(
    mask: Tensor | None,
    bias: Callable[[Tensor], Tensor],
    inputs_embeds: Tensor,
    cache: Cache | None,
    is_causal: bool,
) -> Tensor:
    """The mask as numbers to add to the scores, with the bias of relative positions among them, `[B or 1, H, T, S]`."""
    tokens, past = inputs_embeds.shape[1], cached_tokens(cache)
    device = inputs_embeds.device
    # Without a mask a static cache has more columns than tokens.
    length = tokens if cache is None else cache.get_mask_sizes(tokens, 0)[0]
    keys = torch.arange(length if mask is None else mask.shape[-1], device=device)
    queries = torch.arange(tokens, device=device) + past
    # Padding moves a query and its keys alike, so columns serve as positions.
    relative = keys[None, :] - queries[:, None]
    scores = bias(relative)[None].to(inputs_embeds.dtype)
    lowest = torch.finfo(scores.dtype).min
    if mask is None:
        return scores.masked_fill(relative > 0, lowest) if is_causal else scores
    if mask.dtype == torch.bool:
        return scores.masked_fill(~mask, lowest)
    return (scores + mask).clamp_min(lowest)


def _plan_block_sparse(
    config: SmhtConfig,
    encoding: PositionEncoding,
    inputs_embeds: Tensor,
    attention_mask: Tensor | None,
    position_ids: Tensor | None,
    cache: Cache | None,
    is_causal: bool,
) -> AttentionPlan:
    if attention_mask is not None and attention_mask.dim() != 2:
        raise UsageError(
            f"attention_pattern = 'block_sparse' takes an attention mask [B, S], got {list(attention_mask.shape)}"
        )
    counted = count_positions(inputs_embeds, attention_mask, cache)
    if inputs_embeds.device.type == "cpu" and not torch.compiler.is_compiling():
        # Elsewhere a look at the values would wait for the device.
        _refuse_interrupted(attention_mask)
        _refuse_other_positions(position_ids, counted, attention_mask, cached_tokens(cache))
    rotation = encoding.rotation(counted if position_ids is None else position_ids)
    assert config.sparse_block_size is not None
    sparse = BlockSparseAttention(config.sparse_block_size, is_causal, attention_mask, counted, encoding.bias)
    if _implementation(config) == "sdpa":
        return AttentionPlan(None, sparse, rotation)
    return AttentionPlan(None, sparse.written_out, rotation)


def _refuse_interrupted(attention_mask: Tensor | None) -> None:
    """The pattern takes a cached token's position from its column, so nothing may lie between a row's tokens."""
    if attention_mask is None or not attention_mask.numel():
        return
    real = attention_mask.bool()
    begins = (real[:, 1:] & ~real[:, :-1]).sum(-1) + real[:, 0]
    if (begins > 1).any():
        raise UsageError(
            "attention_pattern = 'block_sparse' needs the tokens of each row side by side, and the attention mask has "
            f"padding between those of row {int((begins > 1).nonzero()[0])}"
        )


def _refuse_other_positions(
    position_ids: Tensor | None, counted: Tensor, attention_mask: Tensor | None, past: int | Tensor
) -> None:
    """The pattern's blocks are cut by counted positions; padded places may have any."""
    if position_ids is None:
        return
    differs = position_ids != counted
    if attention_mask is not None:
        columns = torch.arange(counted.shape[-1]) + past
        differs = differs & attention_mask[:, columns].bool()
    if differs.any():
        raise UsageError(
            "attention_pattern = 'block_sparse' counts positions by the attention mask: give no position_ids"
        )


@dataclass(frozen=True)
class BlockSparseAttention:
    """An attention function that computes only the pairs of the block-sparse pattern (seed 004, arXiv:1904.10509).

    Attributes:
        block_size: tokens of a block.
        is_causal: whether tokens see only those before them.
        attention_mask: `[B, S]`, 1 at real tokens, or None.
        positions: `[B, T]` or `[1, T]`, of the new tokens, counted over real tokens.
        bias: from relative positions to numbers added to the scores.
    """

    block_size: int
    is_causal: bool
    attention_mask: Tensor | None
    positions: Tensor
    bias: Callable[[Tensor], Tensor] | None

    def __call__(
        self,
        module: nn.Module,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        attention_mask: Tensor | None,
        *,
        scaling: float,
        dropout: float,
        **_: Any,
    ) -> tuple[Tensor, None]:
        """See `smht.layers.AttentionFunction`; no weights."""
        if query.shape[2] == key.shape[2]:
            padding = None if self.attention_mask is None else self.attention_mask.bool()
            mixed = ops.block_sparse_attention(
                query,
                key,
                value,
                block_size=self.block_size,
                is_causal=self.is_causal,
                key_padding=padding,
                dropout=dropout,
                scale=scaling,
                relative_bias=self.bias,
            )
        else:
            mixed = ops.block_sparse_decode(
                query,
                key,
                value,
                block_size=self.block_size,
                query_positions=self.positions.expand(query.shape[0], -1),
                first_position_column=self._leading_padding(query.shape[0]),
                scale=scaling,
                relative_bias=self.bias,
            )
        return mixed.transpose(1, 2), None

    def written_out(
        self,
        module: nn.Module,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        attention_mask: Tensor | None,
        **options: Any,
    ) -> tuple[Tensor, Tensor]:
        """The same with a mask over all pairs, for callers who want the weights."""
        columns = torch.arange(key.shape[2], device=key.device)
        keys = columns[None] - self._leading_padding(query.shape[0])[:, None]
        allowed = ops.block_sparse_mask(self.positions, keys.clamp_min(0), self.block_size, self.is_causal)
        if self.attention_mask is not None:
            real = real_columns(self.attention_mask, key.shape[2])
            allowed = allowed & real[:, None, :]
        mask = allowed[:, None]
        if self.bias is not None:
            relative = keys[:, None, :] - self.positions[:, :, None]
            bias = self.bias(relative).transpose(0, 1).to(query.dtype)
            mask = bias.masked_fill(~mask, torch.finfo(query.dtype).min)
        return eager_attention(module, query, key, value, mask, **{**options, "is_causal": False})

    def _leading_padding(self, batch: int) -> Tensor:
        if self.attention_mask is None:
            return torch.zeros(batch, dtype=torch.long, device=self.positions.device)
        return self.attention_mask.long().argmax(-1)
