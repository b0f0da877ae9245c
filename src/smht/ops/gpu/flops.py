"""Multiplications of the GPU ops for PyTorch's flop counter: the reference's, without those that kernels repeat."""

from typing import Any

import torch
from torch.utils.flop_counter import register_flop_formula


def _projection(x: torch.Size, weight: torch.Size) -> int:
    """Multiplications and additions of `[..., H·I]` by `[H, I, O]`."""
    return 2 * (x.numel() // (weight[0] * weight[1])) * weight.numel()


def _products(x: torch.Size) -> int:
    """Those of scores or of mixing: `2·B·H·T·T·K`."""
    return 2 * x[0] * x[1] * x[1] * x[2]


def _linear(x: torch.Size, weight: torch.Size, bias: Any, *_: Any, **__: Any) -> int:
    return _projection(x, weight)


def _linear_gradient(x: torch.Size, grad: torch.Size, num_heads: int, *_: Any, **__: Any) -> int:
    return 2 * x.numel() * (grad[-1] // num_heads)


def _feed_forward(x: torch.Size, up_weight: torch.Size, down_weight: torch.Size, *_: Any, **__: Any) -> int:
    return 2 * _projection(x, up_weight)


def _feed_forward_backward(grad: torch.Size, x: torch.Size, up_weight: torch.Size, *_: Any, **__: Any) -> int:
    return 4 * _projection(x, up_weight)


def _attention(x: torch.Size, q_weight: torch.Size, *_: Any, **__: Any) -> int:
    return 4 * _projection(x, q_weight) + 2 * _products(x)


def _attention_backward(grad: torch.Size, x: torch.Size, q_weight: torch.Size, *_: Any, **__: Any) -> int:
    # As PyTorch counts flash attention's backward pass: scores made again, and four more products.
    return 8 * _projection(x, q_weight) + 5 * _products(x)


def register_formulas() -> None:
    """Tell PyTorch's flop counter about the ops, which must exist by then."""
    ops = torch.ops.smht_gpu
    register_flop_formula(ops.split_linear)(_linear)
    register_flop_formula(ops.split_linear_weight_gradient)(_linear_gradient)
    register_flop_formula(ops.split_feed_forward)(_feed_forward)
    register_flop_formula(ops.split_feed_forward_backward)(_feed_forward_backward)
    register_flop_formula(ops.split_attention)(_attention)
    register_flop_formula(ops.split_attention_backward)(_attention_backward)
