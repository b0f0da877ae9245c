"""The weights of a stack's blocks, as long as its modules are what they were made.

Looking at every module of a model takes as long as computing a token, so what was found is kept, with what it was found
by: modules, parameters, buffers, hooks, and modes where they matter. With each token these are compared by identity,
which takes a fraction of that time. Of hooks it is enough to see whether any was made since, on whatever module.
"""

from itertools import chain
from operator import is_, itemgetter
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.nn.modules.module import _has_any_global_hook
from torch.utils.hooks import RemovableHandle

from smht.layers import ChannelShuffle, FeedForward, HeadLayerNorm, MultiHeadAttention, SplitLinear
from smht.models.base import SmhtBlock
from smht.ops import DecoderWeights

if TYPE_CHECKING:
    from smht.models.stack import SmhtStack

_OURS = (
    nn.ModuleList,
    SmhtBlock,
    MultiHeadAttention,
    FeedForward,
    SplitLinear,
    nn.LayerNorm,
    HeadLayerNorm,
    ChannelShuffle,
    nn.Dropout,
)
_CAPTURING = "transformers.utils.output_capturing"
"""Whose hooks do nothing where neither hidden states nor attention weights are asked for."""

_DROPPING = (nn.Dropout, MultiHeadAttention)
"""What computes something else in training."""

_parts = itemgetter("_modules", "_parameters", "_buffers")
_hooks = itemgetter("_forward_hooks", "_forward_pre_hooks")
_mode = itemgetter("training")


def weights_of(stack: "SmhtStack") -> DecoderWeights | None:
    """The weights of a stack's blocks, if nothing but the blocks' own code would read them.

    None unless every projection is split, and every module from the first block to the last norm is of a class of ours,
    with its own `forward`, not hooked and not in training.
    """
    if stack.training or _has_any_global_hook():
        return None
    found: _Found | None = vars(stack).get("_decoder_modules")
    if found is None or not found.still_holds(stack):
        found = _Found(stack)
        stack._decoder_modules = found  # pyright: ignore[reportArgumentType]
    return found.weights


class _Found:
    """What was found in a stack, and by what.

    Args:
        stack: whose modules to look at.
    """

    def __init__(self, stack: "SmhtStack") -> None:
        modules = [*stack.layers.modules(), *([] if stack.norm is None else [stack.norm])]
        # A module's attributes, without the detour by its `__getattr__`.
        self._attributes = [vars(module) for module in modules]
        self._parts = [part for each in self._attributes for part in _parts(each) if part]
        self._hooks = [hooks for each in self._attributes for hooks in _hooks(each) if hooks]
        self._dropping = [vars(module) for module in modules if isinstance(module, _DROPPING)]
        self._seen = self._look(stack)
        self.weights = _read(stack) if all(map(_is_plain, modules)) else None

    def still_holds(self, stack: "SmhtStack") -> bool:
        """Whether everything is the same object as before."""
        now = self._look(stack)
        return len(now) == len(self._seen) and all(map(is_, now, self._seen))

    def _look(self, stack: "SmhtStack") -> list[Any]:
        return [
            stack.layers,
            stack.norm,
            RemovableHandle.next_id,
            *map(len, self._hooks),
            *chain.from_iterable(map(dict.values, self._parts)),
            *map(_mode, self._dropping),
            *map(len, self._attributes),  # a `forward` of its own is one more
        ]

    def __deepcopy__(self, memo: dict[int, Any]) -> None:
        """A copy of a model has modules of its own."""

    def __reduce__(self) -> tuple[Any, ...]:
        """So has a model that was saved and loaded."""
        return type(None), ()


def _is_plain(module: nn.Module) -> bool:
    hooks = chain(module._forward_hooks.values(), module._forward_pre_hooks.values())
    return (
        type(module) in _OURS
        and not module.training
        and "forward" not in vars(module)
        and all(getattr(hook, "__module__", None) == _CAPTURING for hook in hooks)
    )


def _read(stack: "SmhtStack") -> DecoderWeights | None:
    """The weights of blocks whose modules are plain; None where they are not what the op takes."""
    blocks: list[Any] = list(stack.layers)
    if not blocks or any(type(block) is not SmhtBlock or block.cross_attn is not None for block in blocks):
        return None
    attentions, feed_forwards = [block.self_attn for block in blocks], [block.mlp for block in blocks]
    projections = [
        projection
        for attention, mlp in zip(attentions, feed_forwards, strict=True)
        for projection in (
            *(attention.q_proj, attention.k_proj, attention.v_proj, attention.o_proj),
            *(mlp.up_proj, mlp.down_proj),
        )
    ]
    norms = [norm for block in blocks for norm in (block.input_layernorm, block.post_attention_layernorm)]
    norms += [] if stack.norm is None else [stack.norm]
    biases = [projection.bias for projection in projections if projection.bias is not None]
    shuffles = [mlp.shuffle for mlp in feed_forwards]
    weights = [projection.weight for projection in projections]
    scales, shifts = [norm.weight for norm in norms], [norm.bias for norm in norms]
    if (
        any(type(tensor) not in (Tensor, nn.Parameter) for tensor in (*weights, *scales, *shifts, *biases))
        or any(tensor.device.type != "cpu" for tensor in (*weights, *scales, *shifts, *biases))
        or len(biases) not in (0, len(weights))
        or len({norm.eps for norm in norms}) != 1
    ):
        return None
    return DecoderWeights(
        projections=weights,
        norm_weights=scales,
        norm_biases=shifts,
        biases=biases,
        orders=_orders(shuffles, stack.config.hidden_size),
        activation=feed_forwards[0].activation,
        eps=norms[0].eps,
        norm_per_head=isinstance(norms[0], HeadLayerNorm),
        norm_after=stack.norm is None,
    )


def _orders(shuffles: list[ChannelShuffle | None], hidden_size: int) -> list[Tensor]:
    """The channel order of each block, if any has another than the residual one."""
    if not any(shuffles):
        return []
    return [torch.arange(hidden_size) if shuffle is None else shuffle.order for shuffle in shuffles]
