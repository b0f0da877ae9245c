"""What all models share: blocks with transformers' gradient checkpointing, initialisation, saving."""

import shutil
from os import PathLike
from pathlib import Path
from typing import Any

import torch
from torch import nn
from transformers import PreTrainedModel
from transformers import initialization as init
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.modeling_layers import GradientCheckpointingLayer

from smht.errors import UsageError
from smht.layers import Block, ChannelShuffle, MultiHeadAttention, SplitLinear, fan_in_of
from smht.layers.fast_path import SDPA_FUNCTIONS
from smht.layers.position import TabulatedPositions
from smht.models.configuration import SmhtConfig
from smht.models.tensor_parallel import refuse_tensor_parallel

SDPA_FUNCTIONS.add(sdpa_attention_forward)

AUTO_MAP = {
    "AutoConfig": "configuration.SmhtConfig",
    "AutoModel": "modeling.SmhtModel",
    "AutoModelForCausalLM": "modeling.SmhtForCausalLM",
    "AutoModelForSeq2SeqLM": "modeling.SmhtForSeq2SeqLM",
    "AutoModelForSequenceClassification": "modeling.SmhtForSequenceClassification",
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
    stacks: tuple[str, ...] = ()
    """The values of `config.stack` that the class serves."""

    def __init__(self, config: SmhtConfig) -> None:
        if config.stack not in self.stacks:
            raise UsageError(
                f"stack = {config.stack!r} is not for {type(self).__name__}, "
                f"which needs stack = {' or '.join(map(repr, self.stacks))}"
            )
        super().__init__(config)

    @property
    def readout(self) -> nn.Linear:
        """The layer that makes logits of hidden states.

        Raises:
            UsageError: the model has none.
        """
        raise UsageError(f"{type(self).__name__} has no head")

    def save_pretrained(self, save_directory: str | PathLike[str], *args: Any, **kwargs: Any) -> None:
        """As in transformers, and the folder serves every Auto class with `trust_remote_code`, not one alone."""
        self.config.auto_map = dict(AUTO_MAP)
        folder = Path(save_directory)
        # Before all else, since the folder may be uploaded as soon as the weights are there. Where a file is in the
        # way, transformers says so and saves nothing.
        if not folder.is_file():
            folder.mkdir(parents=True, exist_ok=True)
            shutil.copy(Path(__file__).with_name("modeling.py"), folder)
        super().save_pretrained(save_directory, *args, **kwargs)

    @classmethod
    def maybe_distribute_model(cls, model: Any, distributed_config: Any, *args: Any, **kwargs: Any) -> Any:
        """As in transformers, which calls it before it loads weights; with refusals of ours.

        Raises:
            UsageError: tensor parallelism of a model that it cannot cut.
        """
        if distributed_config is not None and distributed_config.tp_size > 1:
            refuse_tensor_parallel(model.config, distributed_config.tp_size)
        return super().maybe_distribute_model(model, distributed_config, *args, **kwargs)

    @torch.no_grad()
    def _init_weights(self, module: nn.Module) -> None:
        """Normal weights; by fan-in unless the configuration names a standard deviation.

        Projections have the deviation of a fresh `nn.Linear`, 1/√(3·fan_in), with the fan-in of a block where they are
        split. Those that write into a pre-norm residual stream have 1/√W of it, where W is how many do (2N, and 3N with
        a memory), as in GPT-2, so that the sum of all sub-layers begins no larger for many blocks than for few.
        """
        fixed = self.config.initializer_range
        if isinstance(module, SplitLinear | nn.Linear):
            shrink = getattr(module, "residual_writers", 1) ** -0.5
            init.normal_(module.weight, std=fixed or shrink * (3 * fan_in_of(module)) ** -0.5)
            if module.bias is not None:
                init.zeros_(module.bias)
        elif isinstance(module, nn.Embedding):
            init.normal_(module.weight, std=fixed or self.config.hidden_size**-0.5)
        elif isinstance(module, ChannelShuffle):
            order, inverse = module.compute_order()
            init.copy_(module.order, order)
            init.copy_(module.inverse, inverse)
        elif isinstance(module, TabulatedPositions):
            for name, table in module.compute_tables().items():
                init.copy_(getattr(module, name), table)
        else:
            super()._init_weights(module)


def make_block(
    config: SmhtConfig, layer_idx: int, num_layers: int, is_causal: bool, cross_attention: bool = False
) -> SmhtBlock:
    """Block number `layer_idx` of a stack of `num_layers`."""
    assert config.intermediate_size is not None
    block = SmhtBlock(
        config.hidden_size,
        config.num_attention_heads,
        config.intermediate_size,
        split=config.split,
        shuffle=config.mixing == "shuffle",
        norm_scope=config.norm_scope,
        norm_placement=config.norm_placement,
        is_causal=is_causal,
        cross_attention=cross_attention,
        activation=config.hidden_act,
        bias=config.projection_bias,
        norm_eps=config.layer_norm_eps,
        hidden_dropout=config.hidden_dropout,
        attention_dropout=config.attention_dropout,
        layer_idx=layer_idx,
    )
    if config.norm_placement == "pre":
        attentions = [block.self_attn] if block.cross_attn is None else [block.self_attn, block.cross_attn]
        writers = [*(attention.o_proj for attention in attentions), block.mlp.down_proj]
        for projection in writers:
            projection.residual_writers = len(writers) * num_layers  # pyright: ignore[reportArgumentType]
    return block
