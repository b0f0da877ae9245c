"""Gradients that have gradients: where `create_graph` asks for them, kernels leave their gradient to the reference."""

from collections.abc import Callable, Sequence

import torch
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel

from smht.errors import UsageError


def differentiable_gradients(
    function: Callable[..., Tensor], tensors: Sequence[Tensor | None], gradient: Tensor
) -> list[Tensor | None]:
    """The gradient of `function` by each tensor, as a part of the graph; None for what needs none."""
    wanted = [tensor for tensor in tensors if tensor is not None and tensor.requires_grad]
    # PyTorch's fused attention has no second derivative; the written-out one has.
    with sdpa_kernel(SDPBackend.MATH):
        found = iter(torch.autograd.grad(function(*tensors), wanted, gradient, create_graph=True))
    return [next(found) if tensor is not None and tensor.requires_grad else None for tensor in tensors]


def no_second_derivative(backend: str) -> UsageError:
    """What a backend says whose dropout the reference cannot draw again."""
    return UsageError(
        f"split_attention: the {backend} backend has no second derivative with dropout; set the dropout to 0 or "
        "call smht.ops.set_backend('reference')"
    )
