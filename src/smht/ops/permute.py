"""Reordering of channels, forward and backward by the same fast gather."""

from typing import Any

import torch
from torch import Tensor


class _PermuteChannels(torch.autograd.Function):
    """The gradient of a permutation is the inverse permutation.

    PyTorch's own gradient of `gather` and `index_select` adds into zeros instead: several times slower.
    """

    generate_vmap_rule = True

    @staticmethod
    def forward(x: Tensor, order: Tensor, inverse: Tensor) -> Tensor:
        # gather takes about a third of index_select's time on CPU.
        return x.gather(-1, order.expand_as(x))

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, Tensor, Tensor], output: Tensor) -> None:
        _, order, inverse = inputs
        ctx.save_for_backward(order, inverse)

    @staticmethod
    def backward(ctx: Any, *grad_outputs: Tensor) -> tuple[Tensor, None, None]:
        order, inverse = ctx.saved_tensors
        return _PermuteChannels.apply(grad_outputs[0], inverse, order), None, None  # pyright: ignore[reportReturnType]


def permute_channels(x: Tensor, order: Tensor, inverse: Tensor) -> Tensor:
    """Reorder the last axis: `y[..., j] = x[..., order[j]]`.

    Args:
        x: `[..., D]`.
        order: `[D]`, int64, a permutation.
        inverse: `[D]`, int64, its inverse: `order[inverse[j]] = j`.

    Returns:
        `[..., D]`, contiguous.
    """
    return _PermuteChannels.apply(x, order, inverse)  # pyright: ignore[reportReturnType]
