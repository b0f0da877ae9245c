"""`SmhtForSeq2SeqLM`: an encoder-decoder that writes a target from a source (seed 004)."""

from typing import Any, Unpack

import torch
from torch import Tensor, nn
from transformers import GenerationMixin
from transformers.cache_utils import Cache
from transformers.loss.loss_utils import ForCausalLMLoss
from transformers.modeling_outputs import BaseModelOutput, Seq2SeqLMOutput
from transformers.utils.generic import TransformersKwargs, can_return_tuple

from smht.errors import UsageError
from smht.models.attention_plan import generation_mask
from smht.models.base import SmhtPreTrainedModel
from smht.models.cache_argument import CACHE_ARGUMENT, deprecate_old_cache_name, given_cache, named_cache
from smht.models.configuration import SmhtConfig
from smht.models.head_loss import head_loss, needs_no_logits
from smht.models.labels import check_labels, refuse_left_padding, shift_right
from smht.models.model import SmhtModel


class SmhtForSeq2SeqLM(SmhtPreTrainedModel, GenerationMixin):
    """`SmhtModel` of two stacks and a dense head over the target's hidden states."""

    stacks = ("encoder_decoder",)
    _tied_weights_keys = {"lm_head.weight": "model.encoder.embed_tokens.weight"}  # noqa: RUF012

    def __init__(self, config: SmhtConfig) -> None:
        super().__init__(config)
        self.model = SmhtModel(config)
        self.lm_head = nn.Linear(config.hidden_size, config.vocab_size, bias=False)
        self.post_init()

    @property
    def readout(self) -> nn.Linear:
        """The layer that makes logits of hidden states."""
        return self.lm_head

    @deprecate_old_cache_name
    @can_return_tuple
    def forward(
        self,
        input_ids: torch.LongTensor | None = None,
        attention_mask: Tensor | None = None,
        decoder_input_ids: torch.LongTensor | None = None,
        decoder_attention_mask: Tensor | None = None,
        encoder_outputs: BaseModelOutput | tuple[Tensor, ...] | None = None,
        past_key_values: Cache | None = None,
        inputs_embeds: Tensor | None = None,
        decoder_inputs_embeds: Tensor | None = None,
        labels: torch.LongTensor | None = None,
        use_cache: bool | None = None,
        cache: Cache | None = None,
        position_ids: torch.LongTensor | None = None,
        decoder_position_ids: torch.LongTensor | None = None,
        skip_logits: bool = False,
        **kwargs: Unpack[TransformersKwargs],  # pyright: ignore[reportGeneralTypeIssues]
    ) -> Seq2SeqLMOutput:
        """Logits of each target token and, with labels, the mean cross-entropy in nats.

        Args:
            input_ids: `[B, S]`, the source; as in `SmhtModel.forward`, like all arguments not named here.
            attention_mask: see there.
            decoder_input_ids: see there; the labels shifted to the right if not given.
            decoder_attention_mask: see there.
            encoder_outputs: see there.
            past_key_values: see there.
            inputs_embeds: see there.
            decoder_inputs_embeds: see there.
            labels: `[B, T]`, the target with its end token and without its start token; positions with -100 do not
                count.
            use_cache: see there; off where labels are given.
            cache: see there.
            position_ids: see there.
            decoder_position_ids: see there.
            skip_logits: leave the logits out where labels are given; the loss then needs no memory for them.
            **kwargs: `num_items_in_batch`, which the summed loss is divided by; the rest goes to the attention
                functions.

        Returns:
            `logits` `[B, T, V]`, `loss` where labels were given.

        Raises:
            UsageError: what `SmhtModel.forward` refuses, labels that are all -100, or no target.
        """
        if labels is not None:
            check_labels(labels)
            use_cache = False
            if decoder_input_ids is None and decoder_inputs_embeds is None:
                refuse_left_padding(labels)
                decoder_input_ids = self.prepare_decoder_input_ids_from_labels(labels)  # pyright: ignore[reportAssignmentType]
        if decoder_input_ids is None and decoder_inputs_embeds is None:
            raise UsageError("an encoder_decoder needs a target: give labels or decoder_input_ids")
        divisor: Any = kwargs.pop("num_items_in_batch", None)  # pyright: ignore[reportArgumentType]
        outputs = self.model(
            input_ids=input_ids,
            attention_mask=attention_mask,
            position_ids=position_ids,
            inputs_embeds=inputs_embeds,
            decoder_input_ids=decoder_input_ids,
            decoder_attention_mask=decoder_attention_mask,
            decoder_position_ids=decoder_position_ids,
            decoder_inputs_embeds=decoder_inputs_embeds,
            encoder_outputs=encoder_outputs,
            use_cache=use_cache,
            cache=given_cache(cache, past_key_values),
            **kwargs,  # pyright: ignore[reportCallIssue]
        )
        logits, loss = self._score(outputs.last_hidden_state, labels, skip_logits, divisor)
        return Seq2SeqLMOutput(
            loss=loss,  # pyright: ignore[reportArgumentType]
            logits=logits,
            decoder_hidden_states=outputs.decoder_hidden_states,
            decoder_attentions=outputs.decoder_attentions,
            cross_attentions=outputs.cross_attentions,
            encoder_last_hidden_state=outputs.encoder_last_hidden_state,
            encoder_hidden_states=outputs.encoder_hidden_states,
            encoder_attentions=outputs.encoder_attentions,
            **named_cache(outputs.get(CACHE_ARGUMENT)),
        )

    def _score(
        self, hidden_states: Tensor, labels: Tensor | None, skip_logits: bool, divisor: Any
    ) -> tuple[Tensor | None, Tensor | None]:
        """Logits and loss, each where it is wanted."""
        if labels is None:
            return self.lm_head(hidden_states), None
        vocab_size = self.config.vocab_size
        given = {"num_items_in_batch": divisor, "shift_labels": labels}
        if skip_logits and needs_no_logits(self.lm_head, vocab_size, ForCausalLMLoss):
            return None, head_loss(hidden_states, self.lm_head.weight, labels, **given)
        logits = self.lm_head(hidden_states)
        return None if skip_logits else logits, ForCausalLMLoss(logits, labels, vocab_size, **given)

    def prepare_decoder_input_ids_from_labels(self, labels: Tensor) -> Tensor:
        """The labels `[B, T]` as the decoder reads them; transformers' collators call this.

        Raises:
            UsageError: the configuration names no start token.
        """
        start = self.config.decoder_start_token_id
        if start is None:
            raise UsageError(
                "set decoder_start_token_id or bos_token_id in the configuration: what a target begins with"
            )
        return shift_right(labels, start, self.config.pad_token_id)

    def create_masks_for_generate(self, attention_mask: Tensor | None, **kwargs: Any) -> Any:
        """As in `SmhtForCausalLM`."""
        return generation_mask(attention_mask=attention_mask, **kwargs)
