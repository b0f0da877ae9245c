"""When a sub-layer may run as one fused op instead of its composed path.

The composed path (projection, attention function, projection) defines the model. A fused op computes the
same numbers, so it may stand in where nobody can see or needs what lies in between:

| condition | why |
|---|---|
| the projections are `SplitLinear` | the fused ops are head by head |
| nothing is hooked onto a projection | a hook sees the projection's own input and output |
| no projection's `forward` was replaced | accelerate does so to fetch offloaded weights when they are needed |
| attention: the attention function is in `SDPA_FUNCTIONS` | others return weights, or do something else |
| attention: query, key and value are the same tensor | the op is self-attention |
| attention: no cache, neither of the tokens before nor of a memory | keys and values must be kept |
| attention: no bias | not in the op's contract |

A mask, dropout and a rotation of queries and keys are in the contract, so they do not matter.
"""

from collections.abc import Callable
from typing import Any

from torch import Tensor, nn

from smht.layers.projection import SplitLinear

SDPA_FUNCTIONS: set[Callable[..., Any]] = set()
"""Attention functions that are PyTorch's `scaled_dot_product_attention` and nothing more."""


def is_fusable(*projections: nn.Module) -> bool:
    """Whether the projections' weights may be used without calling the modules."""
    return all(
        isinstance(projection, SplitLinear)
        and type(projection).forward is SplitLinear.forward
        and _is_untouched(projection)
        for projection in projections
    )


def is_plain_linear(module: nn.Module) -> bool:
    """Whether a module is `nn.Linear`, and its weight may be used without calling it."""
    return type(module) is nn.Linear and _is_untouched(module)


def fused_feed_forward_weights(
    up_proj: nn.Module, down_proj: nn.Module
) -> tuple[Tensor, Tensor, Tensor | None, Tensor | None] | None:
    """What `ops.split_feed_forward` takes from the two projections, or None for the composed path."""
    if not is_fusable(up_proj, down_proj):
        return None
    assert isinstance(up_proj, SplitLinear) and isinstance(down_proj, SplitLinear)
    return up_proj.weight, down_proj.weight, up_proj.bias, down_proj.bias


def fused_attention_weights(*projections: nn.Module) -> tuple[Tensor, ...] | None:
    """What `ops.split_attention` takes from the q, k, v and o projections, or None for the composed path."""
    if not is_fusable(*projections) or any(projection.bias is not None for projection in projections):
        return None
    return tuple(projection.weight for projection in projections)  # pyright: ignore[reportReturnType]


def _is_untouched(module: nn.Module) -> bool:
    return "forward" not in vars(module) and not (
        module._forward_hooks or module._forward_pre_hooks or module._backward_hooks or module._backward_pre_hooks
    )
