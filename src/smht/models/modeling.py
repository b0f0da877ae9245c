"""The models: seed 000's decoder as Hugging Face models.

Shapes: `B` batch, `T` tokens, `D` hidden size, `V` vocabulary. Imports are absolute because saved models
carry a copy of this file.
"""

from os import PathLike
from typing import Any, Unpack

import torch
from torch import Tensor, nn
from transformers import GenerationMixin, PreTrainedModel
from transformers import initialization as init
from transformers.cache_utils import Cache, DynamicCache
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import create_causal_mask
from transformers.modeling_layers import GradientCheckpointingLayer
from transformers.modeling_outputs import BaseModelOutputWithPast, CausalLMOutputWithPast
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS
from transformers.utils.generic import TransformersKwargs, can_return_tuple, merge_with_config_defaults
from transformers.utils.output_capturing import capture_outputs

from smht.errors import UsageError
from smht.layers import Block, ChannelShuffle, MultiHeadAttention, SplitLinear, make_norm
from smht.layers.fast_path import SDPA_FUNCTIONS
from smht.models.attention import eager_attention
from smht.models.cache_argument import CACHE_ARGUMENT, deprecate_old_cache_name, given_cache, named_cache
from smht.models.configuration import SmhtConfig
from smht.models.positions import check_position_ids, derive_position_ids

SDPA_FUNCTIONS.add(sdpa_attention_forward)

AUTO_MAP = {
    "AutoConfig": "configuration.SmhtConfig",
    "AutoModel": "modeling.SmhtModel",
    "AutoModelForCausalLM": "modeling.SmhtForCausalLM",
}
"""Where a saved folder's own code holds the class of each Auto class."""


class SmhtBlock(GradientCheckpointingLayer, Block):
    """`smht.layers.Block` with transformers' gradient checkpointing."""


class SmhtPreTrainedModel(PreTrainedModel):
    """What all models share: initialisation, and what transformers may do with them."""

    config_class = SmhtConfig
    config: SmhtConfig
    base_model_prefix = "model"
    supports_gradient_checkpointing = True
    _no_split_modules = ["SmhtBlock"]  # noqa: RUF012 - transformers' own form
    _supports_sdpa = True
    _supports_flash_attn = True
    _supports_flex_attn = True
    _supports_attention_backend = True
    _can_compile_fullgraph = True
    _can_record_outputs = {"hidden_states": SmhtBlock, "attentions": MultiHeadAttention}  # noqa: RUF012

    def save_pretrained(self, save_directory: str | PathLike[str], *args: Any, **kwargs: Any) -> None:
        """As in transformers, and the folder serves every Auto class with `trust_remote_code`, not one alone."""
        self.config.auto_map = dict(AUTO_MAP)
        super().save_pretrained(save_directory, *args, **kwargs)

    @torch.no_grad()
    def _init_weights(self, module: nn.Module) -> None:
        """Normal weights; by fan-in unless the configuration names a standard deviation.

        Projections have the deviation of a fresh `nn.Linear`, 1/√(3·fan_in), with the fan-in of a block where they are
        split. Those that write into the residual stream have 1/√(2N) of it, as in GPT-2, so that the sum of all
        sub-layers begins no larger for many blocks than for few.
        """
        fixed = self.config.initializer_range
        if isinstance(module, SplitLinear | nn.Linear):
            fan_in = module.fan_in if isinstance(module, SplitLinear) else module.in_features
            shrink = (2 * self.config.num_hidden_layers) ** -0.5 if hasattr(module, "writes_residual") else 1.0
            init.normal_(module.weight, std=fixed or shrink * (3 * fan_in) ** -0.5)
            if module.bias is not None:
                init.zeros_(module.bias)
        elif isinstance(module, nn.Embedding):
            init.normal_(module.weight, std=fixed or self.config.hidden_size**-0.5)
        elif isinstance(module, ChannelShuffle):
            order, inverse = module.compute_order()
            init.copy_(module.order, order)
            init.copy_(module.inverse, inverse)
        else:
            super()._init_weights(module)


class SmhtModel(SmhtPreTrainedModel):
    """Embeddings, blocks and final LayerNorm: token ids to hidden states `[B, T, D]` (seed 000, steps 0 to 4)."""

    _keys_to_ignore_on_load_unexpected = [r"^lm_head\."]  # noqa: RUF012

    def __init__(self, config: SmhtConfig) -> None:
        super().__init__(config)
        self.embed_tokens = nn.Embedding(config.vocab_size, config.hidden_size)
        self.embed_positions = nn.Embedding(config.max_position_embeddings, config.hidden_size)
        self.dropout = nn.Dropout(config.hidden_dropout)
        self.layers = nn.ModuleList(_make_block(config, layer_idx) for layer_idx in range(config.num_hidden_layers))
        self.norm = make_norm(config.norm_scope, config.hidden_size, config.num_attention_heads, config.layer_norm_eps)
        self.gradient_checkpointing = False
        self.post_init()

    @deprecate_old_cache_name
    @merge_with_config_defaults
    @capture_outputs
    def forward(
        self,
        input_ids: torch.LongTensor | None = None,
        attention_mask: Tensor | None = None,
        position_ids: torch.LongTensor | None = None,
        past_key_values: Cache | None = None,
        inputs_embeds: Tensor | None = None,
        use_cache: bool | None = None,
        cache: Cache | None = None,
        **kwargs: Unpack[TransformersKwargs],  # pyright: ignore[reportGeneralTypeIssues]
    ) -> BaseModelOutputWithPast:
        """Hidden states of every token.

        Args:
            input_ids: `[B, T]`, each below `vocab_size`.
            attention_mask: `[B, S]` over cached and new tokens, 1 at tokens and 0 at padding; or a prepared 4-D mask.
            position_ids: `[B, T]`; counted from the attention mask if not given, so that padding on the left
                changes nothing.
            past_key_values: a cache, by its name up to transformers 5.23.
            inputs_embeds: `[B, T, D]` in place of `input_ids`.
            use_cache: whether to return a cache.
            cache: a cache, by its name since transformers 5.24.
            **kwargs: handed to the attention function.

        Raises:
            UsageError: both or neither of `input_ids` and `inputs_embeds`, a token id outside the vocabulary, a
                position without embedding, an attention mask that is too short, or a cache together with gradient
                checkpointing in training.
        """
        if (input_ids is None) == (inputs_embeds is None):
            raise UsageError("give exactly one of input_ids and inputs_embeds")
        cache = given_cache(cache, past_key_values)
        if cache is not None and self.gradient_checkpointing and self.training and torch.is_grad_enabled():
            raise UsageError("gradient checkpointing computes each block twice, so it cannot be used with a cache")
        if inputs_embeds is None:
            assert input_ids is not None
            self._check_token_ids(input_ids)
            inputs_embeds = self.embed_tokens(input_ids)
        assert inputs_embeds is not None
        if use_cache and cache is None:
            cache = DynamicCache(config=self.config)
        # Only positions that a caller gave can restart within a row, which tells packed sequences apart.
        mask = create_causal_mask(
            config=self.config,
            inputs_embeds=inputs_embeds,
            attention_mask=attention_mask,
            position_ids=position_ids,
            **named_cache(cache),
        )
        positions = derive_position_ids(inputs_embeds, attention_mask, cache) if position_ids is None else position_ids
        check_position_ids(positions, inputs_embeds, cache, self.config.max_position_embeddings)
        hidden_states = self.dropout(inputs_embeds + self.embed_positions(positions))
        assert self.config._attn_implementation is not None
        attention_function = ALL_ATTENTION_FUNCTIONS.get_interface(self.config._attn_implementation, eager_attention)
        for layer in self.layers:
            hidden_states = layer(
                hidden_states, mask=mask, cache=cache, attention_function=attention_function, **kwargs
            )
        return BaseModelOutputWithPast(last_hidden_state=self.norm(hidden_states), **named_cache(cache))

    def _check_token_ids(self, input_ids: Tensor) -> None:
        # Elsewhere than on a CPU the check would wait for the device; there PyTorch asserts.
        if input_ids.device.type != "cpu" or torch.compiler.is_compiling() or not input_ids.numel():
            return
        low, high = torch.aminmax(input_ids)
        if low < 0 or high >= self.config.vocab_size:
            wrong = int(high if high >= self.config.vocab_size else low)
            raise UsageError(f"token id {wrong} is outside the vocabulary of {self.config.vocab_size} tokens")


class SmhtForCausalLM(SmhtPreTrainedModel, GenerationMixin):
    """A language model: `SmhtModel` and a dense head without bias (seed 000, steps 5 and 6)."""

    _tied_weights_keys = {"lm_head.weight": "model.embed_tokens.weight"}  # noqa: RUF012
    _pp_plan = {"lm_head": (["hidden_states"], ["logits"])}  # noqa: RUF012  # pyright: ignore[reportAssignmentType]

    def __init__(self, config: SmhtConfig) -> None:
        super().__init__(config)
        self.model = SmhtModel(config)
        self.lm_head = nn.Linear(config.hidden_size, config.vocab_size, bias=False)
        self.post_init()

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
            **kwargs: `shift_labels`, labels that are already shifted; the rest goes to the attention function.

        Returns:
            `logits` `[B, T, V]`, and `loss` where labels were given.

        Raises:
            UsageError: what `SmhtModel.forward` refuses, or labels that are all -100.
        """
        outputs = self.model(
            input_ids=input_ids,
            attention_mask=attention_mask,
            position_ids=position_ids,
            inputs_embeds=inputs_embeds,
            use_cache=use_cache,
            cache=given_cache(cache, past_key_values),
            **kwargs,  # pyright: ignore[reportCallIssue]
        )
        kept = slice(-logits_to_keep, None) if isinstance(logits_to_keep, int) else logits_to_keep
        logits = self.lm_head(outputs.last_hidden_state[:, kept])
        loss = None
        if labels is not None:
            _check_labels(labels, kwargs.get("shift_labels"))
            loss = self.loss_function(logits=logits, labels=labels, vocab_size=self.config.vocab_size, **kwargs)
        return CausalLMOutputWithPast(
            loss=loss,
            logits=logits,
            hidden_states=outputs.hidden_states,
            attentions=outputs.attentions,
            **named_cache(outputs.get(CACHE_ARGUMENT)),
        )


def _make_block(config: SmhtConfig, layer_idx: int) -> SmhtBlock:
    assert config.intermediate_size is not None
    block = SmhtBlock(
        config.hidden_size,
        config.num_attention_heads,
        config.intermediate_size,
        split=config.split,
        shuffle=config.mixing == "shuffle",
        norm_scope=config.norm_scope,
        activation=config.hidden_act,
        bias=config.projection_bias,
        norm_eps=config.layer_norm_eps,
        hidden_dropout=config.hidden_dropout,
        attention_dropout=config.attention_dropout,
        layer_idx=layer_idx,
    )
    for projection in (block.self_attn.o_proj, block.mlp.down_proj):
        projection.writes_residual = True  # pyright: ignore[reportArgumentType]
    return block


def _check_labels(labels: Tensor, shift_labels: Any) -> None:
    scored = labels[..., 1:] if shift_labels is None else shift_labels
    # Elsewhere than on a CPU the check would wait for the device; there the loss is NaN.
    if scored.device.type == "cpu" and not torch.compiler.is_compiling() and not (scored != -100).any():
        raise UsageError("every label is -100 or comes first, so there is nothing to learn from")
