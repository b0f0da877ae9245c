"""`SmhtForCausalLM`: a language model (seed 000, steps 5 and 6)."""

from typing import Any, Unpack

import torch
from torch import Tensor, nn
from transformers import GenerationConfig, GenerationMixin
from transformers.cache_utils import Cache, DynamicCache
from transformers.modeling_outputs import CausalLMOutputWithPast
from transformers.utils.generic import TransformersKwargs, can_return_tuple

from smht.models.attention_plan import generation_mask
from smht.models.base import SmhtPreTrainedModel
from smht.models.cache_argument import CACHE_ARGUMENT, deprecate_old_cache_name, given_cache, named_cache
from smht.models.configuration import SmhtConfig
from smht.models.decoding import preferred_cache
from smht.models.head_loss import head_loss, needs_no_logits
from smht.models.labels import check_labels
from smht.models.model import SmhtModel
from smht.models.next_token import run_next_token
from smht.models.tensor_parallel import HEAD_PLAN
from smht.models.token_steps import TokenSteps, token_steps


class SmhtForCausalLM(SmhtPreTrainedModel, GenerationMixin):
    """A language model: `SmhtModel` and a dense head without bias (seed 000, steps 5 and 6)."""

    stacks = ("decoder",)
    _tied_weights_keys = {"lm_head.weight": "model.embed_tokens.weight"}  # noqa: RUF012
    _tp_plan = HEAD_PLAN
    _pp_plan = {"lm_head": (["hidden_states"], ["logits"])}  # noqa: RUF012  # pyright: ignore[reportAssignmentType]

    def __init__(self, config: SmhtConfig) -> None:
        super().__init__(config)
        self.model = SmhtModel(config)
        self.lm_head = nn.Linear(config.hidden_size, config.vocab_size, bias=False)
        self.post_init()

    @property
    def readout(self) -> nn.Linear:
        """The layer that makes logits of hidden states."""
        return self.lm_head

    def create_masks_for_generate(self, attention_mask: Tensor | None, **kwargs: Any) -> Any:
        """The mask of a generation with a static cache: four axes, but for a sparse pattern."""
        return generation_mask(attention_mask=attention_mask, **kwargs)

    def _prepare_cache_for_generation(
        self, generation_config: GenerationConfig, model_kwargs: dict[str, Any], *args: Any, **kwargs: Any
    ) -> Any:
        """As in transformers; where nobody named or gave a cache, one over which the model decodes faster.

        What `generate` makes of it is the same: the cache is dynamic, and can be cropped and reordered.
        """
        given = model_kwargs.get(CACHE_ARGUMENT)
        super()._prepare_cache_for_generation(generation_config, model_kwargs, *args, **kwargs)  # pyright: ignore
        made = model_kwargs.get(CACHE_ARGUMENT)
        if given is None and made is not None and generation_config.cache_implementation is None:
            model_kwargs[CACHE_ARGUMENT] = preferred_cache(self, made)

    def new_cache(self) -> Cache:
        """An empty cache for generation, the one over which the model decodes fastest."""
        return preferred_cache(self, DynamicCache(config=self.config))

    def token_steps(self, cache: Cache | None, count: int) -> TokenSteps | None:
        """The logits of the next tokens, one by one and faster, for a loop that has the model to itself.

        Args:
            cache: from `new_cache`, after the tokens before, none of them padding.
            count: how many tokens at most.

        Returns:
            From the newest tokens `[B]` to the logits after them `[B, V]`; None where `forward` has to be called:
            over another cache, beyond the context, and by what is said of models and modes in `smht.models.decoding`.
        """
        return token_steps(self, cache, count) if type(self) is SmhtForCausalLM else None

    @deprecate_old_cache_name
    @can_return_tuple
    def forward(
        self,
        input_ids: torch.LongTensor | None = None,
        attention_mask: Tensor | None = None,
        position_ids: torch.LongTensor | None = None,
        past_key_values: Cache | None = None,
        inputs_embeds: Tensor | None = None,
        labels: torch.LongTensor | None = None,
        use_cache: bool | None = None,
        logits_to_keep: int | Tensor = 0,
        cache: Cache | None = None,
        skip_logits: bool = False,
        **kwargs: Unpack[TransformersKwargs],  # pyright: ignore[reportGeneralTypeIssues]
    ) -> CausalLMOutputWithPast:
        """Logits of the next token and, with labels, the mean cross-entropy in nats.

        Args:
            input_ids: as in `SmhtModel.forward`, like all arguments not named here.
            attention_mask: see there.
            position_ids: see there.
            past_key_values: see there.
            inputs_embeds: see there.
            labels: `[B, T]`, token ids to predict, shifted by the model: position `t` is scored against label
                `t + 1`. Positions with -100 do not count.
            use_cache: see there.
            logits_to_keep: how many of the last positions get logits (0: all), or their indices.
            cache: see there.
            skip_logits: leave the logits out where labels are given; the loss then needs no memory for them.
            **kwargs: `shift_labels`, labels that are already shifted; the rest goes to the attention function.

        Returns:
            `logits` `[B, T, V]`, `loss` where labels were given.

        Raises:
            UsageError: what `SmhtModel.forward` refuses, or labels that are all -100.
        """
        cache = given_cache(cache, past_key_values)
        if labels is None and inputs_embeds is None and isinstance(logits_to_keep, int):
            newest = run_next_token(self.model, input_ids, attention_mask, position_ids, cache, kwargs)  # pyright: ignore
            if newest is not None:
                return CausalLMOutputWithPast(logits=self._score(newest, None, False)[0], **named_cache(cache))  # pyright: ignore
        outputs = self.model(
            input_ids=input_ids,
            attention_mask=attention_mask,
            position_ids=position_ids,
            inputs_embeds=inputs_embeds,
            use_cache=use_cache,
            cache=cache,
            **kwargs,  # pyright: ignore[reportCallIssue]
        )
        kept = slice(-logits_to_keep, None) if isinstance(logits_to_keep, int) else logits_to_keep
        logits, loss = self._score(outputs.last_hidden_state[:, kept], labels, skip_logits, **kwargs)
        return CausalLMOutputWithPast(
            loss=loss,
            logits=logits,
            hidden_states=outputs.hidden_states,
            attentions=outputs.attentions,
            **named_cache(outputs.get(CACHE_ARGUMENT)),
        )

    def _score(
        self, hidden_states: Tensor, labels: Tensor | None, skip_logits: bool, **kwargs: Any
    ) -> tuple[Tensor | None, Tensor | None]:
        """Logits and loss, each where it is wanted."""
        if labels is None:
            return self.lm_head(hidden_states), None
        shifted = kwargs.get("shift_labels")
        check_labels(labels[..., 1:] if shifted is None else shifted, "comes first")
        vocab_size = self.config.vocab_size
        if skip_logits and needs_no_logits(self.lm_head, vocab_size, self.loss_function):
            return None, head_loss(hidden_states, self.lm_head.weight, labels, **kwargs)
        logits = self.lm_head(hidden_states)
        loss = self.loss_function(logits=logits, labels=labels, vocab_size=vocab_size, **kwargs)
        return None if skip_logits else logits, loss
