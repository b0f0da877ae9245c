"""One stack of blocks with its embeddings: what decoders, encoders and both together are made of."""

import math
from typing import Any

import torch
from torch import Tensor, nn
from transformers.cache_utils import Cache, EncoderDecoderCache

from smht.errors import UsageError
from smht.layers import make_norm, make_position_encoding
from smht.layers.position import Sizes
from smht.models.attention_plan import plan_cross_attention, plan_self_attention
from smht.models.base import SmhtPreTrainedModel, make_block
from smht.models.configuration import STACKS, SmhtConfig
from smht.models.decoding import decode_fused
from smht.models.positions import check_attention_mask, check_position_ids, count_positions


class SmhtStack(SmhtPreTrainedModel):
    """Embeddings, blocks and, where the norms stand before the sub-layers, a norm at the end.

    Shapes: `B` batch, `T` tokens, `S` cached and new tokens, `D` hidden size.
    """

    stacks = STACKS
    whole_width: int | None = None
    """Channels of all ranks together, where this is one rank's part of a stack."""

    def build(
        self,
        config: SmhtConfig,
        *,
        is_causal: bool,
        num_layers: int,
        cross_attention: bool = False,
        embeds_tokens: bool = True,
    ) -> None:
        """Make the modules.

        Args:
            config: sizes and choices.
            is_causal: whether tokens see only those before them.
            num_layers: how many blocks.
            cross_attention: whether the blocks attend to a memory.
            embeds_tokens: whether the stack has a token embedding of its own.
        """
        width, heads = config.hidden_size, config.num_attention_heads
        self.is_causal = is_causal
        self.embed_tokens: nn.Embedding | None = nn.Embedding(config.vocab_size, width) if embeds_tokens else None
        sizes = Sizes(config.max_position_embeddings, width, heads, is_causal)
        self.embed_positions = make_position_encoding(config.position_embedding, sizes)
        self.dropout = nn.Dropout(config.hidden_dropout)
        blocks = (make_block(config, i, num_layers, is_causal, cross_attention) for i in range(num_layers))
        self.layers = nn.ModuleList(blocks)
        has_last_norm = config.norm_placement == "pre"
        self.norm = make_norm(config.norm_scope, width, heads, config.layer_norm_eps) if has_last_norm else None
        self.gradient_checkpointing = False

    def embed(self, input_ids: Tensor | None, inputs_embeds: Tensor | None) -> Tensor:
        """`[B, T, D]` from either of the two.

        Raises:
            UsageError: both or neither, another number of axes, or a token id outside the vocabulary.
        """
        if (input_ids is None) == (inputs_embeds is None):
            raise UsageError("give exactly one of input_ids and inputs_embeds")
        embedded = self._look_up(input_ids) if inputs_embeds is None else inputs_embeds
        if embedded.dim() != 3:
            given = input_ids if inputs_embeds is None else inputs_embeds
            assert given is not None
            raise UsageError(f"input_ids must be [B, T], and inputs_embeds [B, T, D]; got shape {list(given.shape)}")
        scale = self.embedding_scale
        return embedded if scale == 1 else embedded * scale

    @property
    def embedding_scale(self) -> float:
        """What token embeddings are multiplied with.

        Sinusoidal waves have amplitude 1 and would drown embeddings of length 1 (arXiv:1706.03762, section 3.4).
        """
        width = self.whole_width or self.config.hidden_size
        return math.sqrt(width) if self.config.position_embedding == "sinusoidal" else 1.0

    @property
    def last_norm(self) -> nn.Module:
        """The norm whose output is the stack's: the one at the end, or that of the last block."""
        return self.layers[-1].post_attention_layernorm if self.norm is None else self.norm  # pyright: ignore

    def _look_up(self, input_ids: Tensor | None) -> Tensor:
        assert input_ids is not None and self.embed_tokens is not None
        self._check_token_ids(input_ids)
        return self.embed_tokens(input_ids)

    def run(
        self,
        inputs_embeds: Tensor,
        attention_mask: Tensor | None,
        position_ids: Tensor | None = None,
        cache: Cache | None = None,
        memory: Tensor | None = None,
        memory_mask: Tensor | None = None,
        **kwargs: Any,
    ) -> Tensor:
        """Embedded tokens `[B, T, D]` to hidden states `[B, T, D]`.

        Args:
            inputs_embeds: `[B, T, D]`.
            attention_mask: `[B, S]`, 1 at tokens and 0 at padding, or a prepared 4-D mask.
            position_ids: `[B, T]`; counted from the attention mask if not given, so that padding on the left changes
                nothing.
            cache: the tokens before these.
            memory: what blocks with cross-attention attend to.
            memory_mask: its attention mask.
            **kwargs: `is_causal` in place of the stack's own; handed to the attention functions.

        Raises:
            UsageError: a position that the model does not have, an attention mask that is too short, or a cache
                together with gradient checkpointing in training.
        """
        if cache is not None and self.gradient_checkpointing and self.training and torch.is_grad_enabled():
            raise UsageError("gradient checkpointing computes each block twice, so it cannot be used with a cache")
        attention_mask = check_attention_mask(attention_mask, inputs_embeds, cache)
        own_cache = cache.self_attention_cache if isinstance(cache, EncoderDecoderCache) else cache
        positions = position_ids
        if positions is None:
            positions = count_positions(inputs_embeds, attention_mask, own_cache)
        check_position_ids(positions, inputs_embeds, own_cache, self.config.max_position_embeddings)
        added = self.embed_positions.embed(positions)
        hidden_states = self.dropout(inputs_embeds if added is None else inputs_embeds + added)
        if memory is None:
            decoded = decode_fused(self, hidden_states, attention_mask, positions, own_cache, kwargs)
            if decoded is not None:
                return decoded
        plan = plan_self_attention(
            self.config,
            self.embed_positions,
            inputs_embeds,
            attention_mask,
            position_ids,
            positions,
            own_cache,
            kwargs.get("is_causal", self.is_causal),
        )
        # By place: through named arguments reentrant gradient checkpointing passes no gradient.
        given: tuple[Any, ...] = (plan.mask, own_cache, plan.function)
        if memory is not None:
            to_memory = plan_cross_attention(self.config, inputs_embeds, memory, memory_mask)
            memory_cache = MemoryKeysAndValues(cache) if isinstance(cache, EncoderDecoderCache) else None
            given += (memory, to_memory.mask, memory_cache, to_memory.function)
        for layer in self.layers:
            hidden_states = layer(hidden_states, *given, rotation=plan.rotation, **kwargs)
        return hidden_states if self.norm is None else self.norm(hidden_states)

    def _check_token_ids(self, input_ids: Tensor) -> None:
        # Elsewhere than on a CPU the check would wait for the device; there PyTorch asserts.
        if input_ids.device.type != "cpu" or torch.compiler.is_compiling() or not input_ids.numel():
            return
        low, high = torch.aminmax(input_ids)
        if low < 0 or high >= self.config.vocab_size:
            wrong = int(high if high >= self.config.vocab_size else low)
            raise UsageError(f"token id {wrong} is outside the vocabulary of {self.config.vocab_size} tokens")


class MemoryKeysAndValues:
    """The part of transformers' cache that holds the memory's keys and values, as `smht.layers.attention.MemoryCache`.

    Args:
        cache: of both attentions.
    """

    def __init__(self, cache: EncoderDecoderCache) -> None:
        self._cache = cache

    def load(self, layer_idx: int) -> tuple[Tensor, Tensor] | None:
        """Keys and values of a layer, if they were saved."""
        if not self._cache.is_updated.get(layer_idx):
            return None
        layer: Any = self._cache.cross_attention_cache.layers[layer_idx]
        return layer.keys, layer.values

    def save(self, key_states: Tensor, value_states: Tensor, layer_idx: int) -> None:
        """Keep keys and values of a layer."""
        self._cache.cross_attention_cache.update(key_states, value_states, layer_idx)
        self._cache.is_updated[layer_idx] = True
