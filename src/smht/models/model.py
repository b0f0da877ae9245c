"""`SmhtModel`: token ids to hidden states, for every stack."""

from typing import Any, Unpack

import torch
from torch import Tensor, nn
from transformers.cache_utils import Cache, DynamicCache, EncoderDecoderCache
from transformers.modeling_outputs import (
    BaseModelOutput,
    BaseModelOutputWithPast,
    BaseModelOutputWithPastAndCrossAttentions,
    Seq2SeqModelOutput,
)
from transformers.utils.generic import TransformersKwargs, can_return_tuple, merge_with_config_defaults
from transformers.utils.output_capturing import OutputRecorder, capture_outputs

from smht.errors import UsageError
from smht.layers import MultiHeadAttention
from smht.models.base import SmhtBlock
from smht.models.cache_argument import CACHE_ARGUMENT, deprecate_old_cache_name, given_cache, named_cache
from smht.models.configuration import STACKS, SmhtConfig
from smht.models.stack import SmhtStack


class SmhtEncoder(SmhtStack):
    """The encoder of an encoder-decoder."""

    def __init__(self, config: SmhtConfig) -> None:
        super().__init__(config)
        self.build(config, is_causal=False, num_layers=config.num_hidden_layers)
        self.post_init()

    @merge_with_config_defaults
    @capture_outputs
    def forward(
        self,
        input_ids: torch.LongTensor | None = None,
        attention_mask: Tensor | None = None,
        inputs_embeds: Tensor | None = None,
        position_ids: torch.LongTensor | None = None,
        **kwargs: Unpack[TransformersKwargs],  # pyright: ignore[reportGeneralTypeIssues]
    ) -> BaseModelOutput:
        """Hidden states `[B, S, D]` of every source token; the arguments are those of `SmhtModel.forward`."""
        embedded = self.embed(input_ids, inputs_embeds)
        hidden_states = self.run(embedded, attention_mask, position_ids, **kwargs)  # pyright: ignore[reportCallIssue]
        return BaseModelOutput(last_hidden_state=hidden_states)  # pyright: ignore[reportArgumentType]


class SmhtDecoder(SmhtStack):
    """The decoder of an encoder-decoder; its tokens are embedded by the encoder's table."""

    _can_record_outputs = {  # noqa: RUF012 - transformers' own form
        "hidden_states": SmhtBlock,
        "attentions": OutputRecorder(MultiHeadAttention, index=1, layer_name="self_attn"),
        "cross_attentions": OutputRecorder(MultiHeadAttention, index=1, layer_name="cross_attn"),
    }

    def __init__(self, config: SmhtConfig) -> None:
        super().__init__(config)
        assert config.num_decoder_layers is not None
        self.build(
            config,
            is_causal=True,
            num_layers=config.num_decoder_layers,
            cross_attention=True,
            embeds_tokens=False,
        )
        self.post_init()

    @merge_with_config_defaults
    @capture_outputs
    def forward(
        self,
        inputs_embeds: Tensor,
        memory: Tensor,
        memory_mask: Tensor | None = None,
        attention_mask: Tensor | None = None,
        position_ids: torch.LongTensor | None = None,
        use_cache: bool | None = None,
        cache: Cache | None = None,
        **kwargs: Unpack[TransformersKwargs],  # pyright: ignore[reportGeneralTypeIssues]
    ) -> BaseModelOutputWithPastAndCrossAttentions:
        """Hidden states of target tokens `[B, T, D]` that attend to each other and to the memory `[B, S, D]`."""
        if use_cache and cache is None:
            cache = EncoderDecoderCache(DynamicCache(), DynamicCache())
        hidden_states = self.run(
            inputs_embeds,
            attention_mask,
            position_ids,
            cache,
            memory,
            memory_mask,
            **kwargs,  # pyright: ignore[reportCallIssue]
        )
        return BaseModelOutputWithPastAndCrossAttentions(last_hidden_state=hidden_states, **named_cache(cache))  # pyright: ignore


class SmhtModel(SmhtStack):
    """Hidden states `[B, T, D]` of the stack that `config.stack` names (seed 000, steps 0 to 4; seeds 001 and 004)."""

    stacks = STACKS
    _keys_to_ignore_on_load_unexpected = [r"^lm_head\.", r"^score\."]  # noqa: RUF012

    def __init__(self, config: SmhtConfig) -> None:
        super().__init__(config)
        if config.stack == "encoder_decoder":
            self.encoder = SmhtEncoder(config)
            self.decoder = SmhtDecoder(config)
        else:
            self.build(config, is_causal=config.stack == "decoder", num_layers=config.num_hidden_layers)
        self.post_init()

    def get_input_embeddings(self) -> nn.Module:
        """The token embedding, which source and target share."""
        stack = self.encoder if self.config.is_encoder_decoder else self
        assert stack.embed_tokens is not None
        return stack.embed_tokens

    def set_input_embeddings(self, value: nn.Module) -> None:
        """Put another token embedding in its place."""
        stack = self.encoder if self.config.is_encoder_decoder else self
        stack.embed_tokens = value  # pyright: ignore[reportAttributeAccessIssue]

    @property
    def last_norm(self) -> nn.Module:
        """The norm whose output is the model's, the target's where there is a source."""
        return self.decoder.last_norm if self.config.is_encoder_decoder else super().last_norm

    @deprecate_old_cache_name
    def forward(
        self,
        input_ids: torch.LongTensor | None = None,
        attention_mask: Tensor | None = None,
        position_ids: torch.LongTensor | None = None,
        past_key_values: Cache | None = None,
        inputs_embeds: Tensor | None = None,
        use_cache: bool | None = None,
        cache: Cache | None = None,
        decoder_input_ids: torch.LongTensor | None = None,
        decoder_attention_mask: Tensor | None = None,
        decoder_position_ids: torch.LongTensor | None = None,
        decoder_inputs_embeds: Tensor | None = None,
        encoder_outputs: BaseModelOutput | tuple[Tensor, ...] | None = None,
        **kwargs: Unpack[TransformersKwargs],  # pyright: ignore[reportGeneralTypeIssues]
    ) -> BaseModelOutput | BaseModelOutputWithPast | Seq2SeqModelOutput:
        """Hidden states of every token; of every target token, where there are two stacks.

        Args:
            input_ids: `[B, T]`, each below `vocab_size`; the source, where there are two stacks.
            attention_mask: `[B, S]` over cached and new tokens, 1 at tokens and 0 at padding; or a prepared 4-D mask.
            position_ids: `[B, T]`; counted from the attention mask if not given, so that padding on the left
                changes nothing.
            past_key_values: a cache, by its name up to transformers 5.23.
            inputs_embeds: `[B, T, D]` in place of `input_ids`, as the token embedding gives them.
            use_cache: whether to return a cache; if not given, what the configuration says, and not in training,
                where nobody goes on from it and the fused attention would have to stand back.
            cache: a cache, by its name since transformers 5.24.
            decoder_input_ids: `[B, T]`, the target; for two stacks, like all that follow.
            decoder_attention_mask: over cached and new target tokens.
            decoder_position_ids: like `position_ids`.
            decoder_inputs_embeds: `[B, T, D]` in place of `decoder_input_ids`.
            encoder_outputs: what the encoder gave for the source, to save computing it again.
            **kwargs: handed to the attention functions.

        Raises:
            UsageError: both or neither of `input_ids` and `inputs_embeds`, a token id outside the vocabulary, a
                position that the model does not have, an attention mask that is too short, a cache together with
                gradient checkpointing in training, or arguments for a stack that the model does not have.
        """
        cache = given_cache(cache, past_key_values)
        if use_cache is None and self.training:
            use_cache = False
        target = {
            "input_ids": decoder_input_ids,
            "attention_mask": decoder_attention_mask,
            "position_ids": decoder_position_ids,
            "inputs_embeds": decoder_inputs_embeds,
        }
        if self.config.is_encoder_decoder:
            if encoder_outputs is None:
                encoder_outputs = self.encoder(
                    input_ids=input_ids,
                    attention_mask=attention_mask,
                    inputs_embeds=inputs_embeds,
                    position_ids=position_ids,
                    **{**kwargs, "return_dict": True},
                )
            return self._decode(encoder_outputs, attention_mask, target, use_cache, cache, **kwargs)  # pyright: ignore
        if encoder_outputs is not None or any(value is not None for value in target.values()):
            raise UsageError(f"decoder arguments are for stack = 'encoder_decoder', not {self.config.stack!r}")
        if cache is not None and self.config.stack == "encoder":
            raise UsageError("an encoder looks both ways, so there is nothing to cache: leave the cache out")
        return self._run_single(
            input_ids=input_ids,
            attention_mask=attention_mask,
            position_ids=position_ids,
            inputs_embeds=inputs_embeds,
            use_cache=use_cache,
            cache=cache,
            **kwargs,  # pyright: ignore[reportCallIssue]
        )

    @merge_with_config_defaults
    @capture_outputs
    def _run_single(
        self,
        input_ids: torch.LongTensor | None = None,
        attention_mask: Tensor | None = None,
        position_ids: torch.LongTensor | None = None,
        inputs_embeds: Tensor | None = None,
        use_cache: bool | None = None,
        cache: Cache | None = None,
        **kwargs: Any,
    ) -> BaseModelOutput | BaseModelOutputWithPast:
        embedded = self.embed(input_ids, inputs_embeds)
        if self.config.stack == "encoder":
            hidden_states = self.run(embedded, attention_mask, position_ids, **kwargs)
            return BaseModelOutput(last_hidden_state=hidden_states)  # pyright: ignore[reportArgumentType]
        if use_cache and cache is None:
            cache = DynamicCache(config=self.config)
        hidden_states = self.run(embedded, attention_mask, position_ids, cache, **kwargs)
        return BaseModelOutputWithPast(last_hidden_state=hidden_states, **named_cache(cache))  # pyright: ignore[reportArgumentType]

    @can_return_tuple
    def _decode(
        self,
        encoder_outputs: BaseModelOutput | tuple[Tensor, ...],
        memory_mask: Tensor | None,
        target: dict[str, Any],
        use_cache: bool | None,
        cache: Cache | None,
        **kwargs: Any,
    ) -> Seq2SeqModelOutput:
        encoded = encoder_outputs
        if not isinstance(encoded, BaseModelOutput):
            encoded = BaseModelOutput(*encoded)  # pyright: ignore[reportArgumentType]
        memory = encoded.last_hidden_state
        assert memory is not None
        embedded = self.encoder.embed(target.pop("input_ids"), target.pop("inputs_embeds"))
        if len(embedded) != len(memory):
            raise UsageError(f"there are {len(memory)} sources and {len(embedded)} targets: give one target a source")
        decoded = self.decoder(
            inputs_embeds=embedded,
            memory=memory,
            memory_mask=memory_mask,
            use_cache=use_cache,
            cache=cache,
            **target,
            **{**kwargs, "return_dict": True},
        )
        return Seq2SeqModelOutput(
            last_hidden_state=decoded.last_hidden_state,
            decoder_hidden_states=decoded.hidden_states,
            decoder_attentions=decoded.attentions,
            cross_attentions=decoded.cross_attentions,
            encoder_last_hidden_state=encoded.last_hidden_state,
            encoder_hidden_states=encoded.hidden_states,
            encoder_attentions=encoded.attentions,
            **named_cache(decoded.get(CACHE_ARGUMENT)),
        )
