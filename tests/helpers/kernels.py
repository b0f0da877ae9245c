"""What tests of kernels share: exact results, and the errors that PyTorch's own ops make."""

from collections.abc import Callable

import torch
from torch import Tensor

from helpers.tensors import value_and_gradients


def assert_rounds_like(
    kernel: Callable[..., Tensor], reference: Callable[..., Tensor], *tensors: Tensor, factor: float = 2.0
) -> None:
    """Value and gradients of `kernel` are at most `factor` times as far from the exact ones as those of `reference`.

    Distances are Euclidean norms; exact is what the reference gives in float64. In a few numbers the reference may be
    exact by luck, so some units in the last place are let pass, the more the fewer they are;
    most where all cancels, as in the gradient of a softmax over one key.
    """
    dtype = tensors[0].dtype
    exact = value_and_gradients(reference, *(tensor.double() for tensor in tensors))
    theirs = value_and_gradients(reference, *tensors)
    ours = value_and_gradients(kernel, *tensors)
    scale = max(tensor.norm().item() for tensor in exact if tensor.numel()) if exact[0].numel() else 0.0
    for place, (our, their, truth) in enumerate(zip(ours, theirs, exact, strict=True)):
        assert our.dtype == their.dtype == dtype and our.shape == their.shape, place
        our_error, their_error = ((result.double() - truth).norm().item() for result in (our, their))
        units = 8 if truth.norm() == 0 else 0.3 + 10 / max(1, truth.numel())
        floor = units * torch.finfo(dtype).eps * scale
        assert our_error <= factor * their_error + floor, (place, our_error, their_error)
