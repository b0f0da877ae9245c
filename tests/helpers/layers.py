"""What tests of layers and models share."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from helpers.tensors import assert_all_close

PROJECTIONS = ("q_proj", "k_proj", "v_proj", "o_proj", "up_proj", "down_proj")


def projections(module: nn.Module) -> list[nn.Module]:
    """Every projection inside a module."""
    return [part for name, part in module.named_modules() if name.rsplit(".", 1)[-1] in PROJECTIONS]


@contextmanager
def composed_path(module: nn.Module) -> Iterator[None]:
    """Hooks on all projections, so that no fused op may stand in for them."""
    handles = [projection.register_forward_hook(lambda *_: None) for projection in projections(module)]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


def randomize(module: nn.Module) -> None:
    """Give every parameter a value of its own: norms are not ones and zeros, biases not zeros."""
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.add_(torch.randn_like(parameter), alpha=0.3)


def output_and_all_gradients(module: nn.Module, function: Callable[..., Any], x: Tensor, seed: int = 0) -> list[Tensor]:
    """`function(x)`, then the gradients of a random weighting of it by `x` and by the module's parameters."""
    leaf = x.detach().clone().requires_grad_()
    output = function(leaf)
    output = output[0] if isinstance(output, tuple) else output
    weighting = torch.randn(output.shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))
    wanted = [leaf, *module.parameters()]
    return [output.detach(), *torch.autograd.grad((output * weighting.to(output.dtype)).sum(), wanted)]


def assert_fused_equals_composed(module: nn.Module, function: Callable[..., Any], x: Tensor) -> None:
    """With and without the fused ops: the same numbers and gradients, up to the last bits.

    Not bit for bit, because a matrix product may round by the strides of what it is given.
    """
    fused = output_and_all_gradients(module, function, x)
    with composed_path(module):
        composed = output_and_all_gradients(module, function, x)
    assert_all_close(fused, composed, tolerance=8 * torch.finfo(x.dtype).eps)
