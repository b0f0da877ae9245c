"""`SmhtForSequenceClassification`: one label for a text."""

from typing import Unpack

import torch
from torch import Tensor, nn
from transformers.cache_utils import Cache
from transformers.modeling_outputs import SequenceClassifierOutputWithPast
from transformers.utils.generic import TransformersKwargs, can_return_tuple

from smht.errors import UsageError
from smht.models.base import SmhtPreTrainedModel
from smht.models.cache_argument import CACHE_ARGUMENT, deprecate_old_cache_name, given_cache, named_cache
from smht.models.configuration import SmhtConfig
from smht.models.model import SmhtModel


class SmhtForSequenceClassification(SmhtPreTrainedModel):
    """`SmhtModel` and a dense head over one vector a text.

    That vector is the mean over the real tokens of an encoder, and the last real token of a decoder, the only one that
    has seen them all.
    """

    stacks = ("encoder", "decoder")
    accepts_loss_kwargs = False  # transformers' trainer would scale the loss for a divisor that it does not take
    _keys_to_ignore_on_load_unexpected = [r"^lm_head\."]  # noqa: RUF012 - transformers' own form

    def __init__(self, config: SmhtConfig) -> None:
        super().__init__(config)
        assert config.num_labels is not None
        self.num_labels: int = config.num_labels
        self.model = SmhtModel(config)
        self.dropout = nn.Dropout(config.hidden_dropout)
        self.score = nn.Linear(config.hidden_size, self.num_labels, bias=False)
        self.post_init()

    @property
    def readout(self) -> nn.Linear:
        """The layer that makes logits of hidden states."""
        return self.score

    @deprecate_old_cache_name
    @can_return_tuple
    def forward(
        self,
        input_ids: torch.LongTensor | None = None,
        attention_mask: Tensor | None = None,
        position_ids: torch.LongTensor | None = None,
        past_key_values: Cache | None = None,
        inputs_embeds: Tensor | None = None,
        labels: Tensor | None = None,
        use_cache: bool | None = None,
        cache: Cache | None = None,
        **kwargs: Unpack[TransformersKwargs],  # pyright: ignore[reportGeneralTypeIssues]
    ) -> SequenceClassifierOutputWithPast:
        """Logits of each label and, with labels, the loss: cross-entropy, or what `config.problem_type` says.

        Args:
            input_ids: as in `SmhtModel.forward`, like all arguments not named here.
            attention_mask: `[B, T]`, 1 at tokens and 0 at padding; without it, `config.pad_token_id` marks padding.
            position_ids: see there.
            past_key_values: see there.
            inputs_embeds: see there.
            labels: `[B]`, numbers of labels.
            use_cache: see there.
            cache: see there.
            **kwargs: handed to the attention functions.

        Returns:
            `logits` `[B, num_labels]`, and `loss` where labels were given.

        Raises:
            UsageError: what `SmhtModel.forward` refuses, or a label outside `num_labels`.
        """
        real = self._real_tokens(input_ids, attention_mask)
        outputs = self.model(
            input_ids=input_ids,
            attention_mask=real if attention_mask is None else attention_mask,
            position_ids=position_ids,
            inputs_embeds=inputs_embeds,
            use_cache=use_cache,
            cache=given_cache(cache, past_key_values),
            **kwargs,  # pyright: ignore[reportCallIssue]
        )
        logits = self.score(self.dropout(self._pool(outputs.last_hidden_state, real)))
        loss = None
        if labels is not None:
            self._check_labels(labels)
            loss = self.loss_function(logits=logits, labels=labels, pooled_logits=logits, config=self.config)
        return SequenceClassifierOutputWithPast(
            loss=loss,
            logits=logits,
            hidden_states=outputs.hidden_states,
            attentions=outputs.attentions,
            **named_cache(outputs.get(CACHE_ARGUMENT)),
        )

    def _real_tokens(self, input_ids: Tensor | None, attention_mask: Tensor | None) -> Tensor | None:
        """`[B, T]`, 1 at tokens and 0 at padding; None where nothing tells them apart."""
        if attention_mask is not None:
            return attention_mask if attention_mask.dim() == 2 else None
        pad = self.config.pad_token_id
        return None if input_ids is None or pad is None else (input_ids != pad).long()

    def _pool(self, hidden_states: Tensor, real: Tensor | None) -> Tensor:
        """`[B, T, D]` to `[B, D]`."""
        tokens = hidden_states.shape[1]
        if real is None:
            return hidden_states.mean(1) if self.config.stack == "encoder" else hidden_states[:, -1]
        real = real[:, -tokens:].long()
        if self.config.stack == "encoder":
            weights = real.to(hidden_states.dtype) / real.sum(-1, keepdim=True).clamp_min(1)
            return torch.einsum("btd,bt->bd", hidden_states, weights)
        last = (real * torch.arange(1, tokens + 1, device=real.device)).argmax(-1)
        return hidden_states[torch.arange(hidden_states.shape[0], device=real.device), last]

    def _check_labels(self, labels: Tensor) -> None:
        # Elsewhere than on a CPU the check would wait for the device; other kinds of labels are no numbers of labels.
        if labels.device.type != "cpu" or torch.compiler.is_compiling() or not labels.numel():
            return
        if labels.is_floating_point() or self.num_labels == 1:
            return
        low, high = torch.aminmax(labels)
        if low < 0 or high >= self.num_labels:
            wrong = int(high if high >= self.num_labels else low)
            raise UsageError(f"label {wrong} is not one of the {self.num_labels} labels, 0 to {self.num_labels - 1}")
