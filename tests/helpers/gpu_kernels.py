"""What the tests of the GPU kernels share: where they run, and comparisons with float64."""

import importlib.util
from collections.abc import Callable, Sequence

import pytest
import torch
from hypothesis import Phase, settings
from torch import Tensor

from helpers.tensors import relative_errors
from smht.ops.gpu_backend import DEVICE, INTERPRETED

HAS_TRITON = importlib.util.find_spec("triton") is not None
CAN_RUN = HAS_TRITON and (INTERPRETED or torch.cuda.is_available())
"""Whether kernels run in this process: Triton reads TRITON_INTERPRET when it is first imported."""

interpreter_warnings = pytest.mark.filterwarnings(
    "ignore:Conversion of an array with ndim > 0:DeprecationWarning",
    "ignore:overflow encountered in exp:RuntimeWarning",
)
"""What Triton's interpreter says about its own use of NumPy."""

few_examples = settings(max_examples=2 if INTERPRETED else 20, phases=[Phase.explicit, Phase.generate])
"""The interpreter is slow, and would take minutes to look for a smaller failing example."""


def outcomes(function: Callable[..., Tensor], tensors: Sequence[Tensor], dtype: torch.dtype) -> list[Tensor]:
    """The function's output on the tensors in this dtype, then the gradient of a fixed weighting of it by each."""
    leaves = [tensor.detach().to(DEVICE, dtype).requires_grad_() for tensor in tensors]
    output = function(*leaves)
    weighting = torch.randn(output.shape, generator=torch.Generator().manual_seed(0)).to(DEVICE, output.dtype)
    return [output.detach(), *torch.autograd.grad(output, leaves, weighting)]


def assert_agree(
    ours: Callable[..., Tensor], reference: Callable[..., Tensor], tensors: Sequence[Tensor], tolerance: float = 1e-4
) -> None:
    """Output and gradients in float32 are the reference's in float64, up to the tolerance of their largest element."""
    actual, expected = outcomes(ours, tensors, torch.float32), outcomes(reference, tensors, torch.float64)
    for number, (single, double) in enumerate(zip(actual, expected, strict=True)):
        bound = tolerance * max(1.0, double.abs().max().item() if double.numel() else 0.0)
        torch.testing.assert_close(
            single.double(), double, rtol=0, atol=bound, msg=lambda text, number=number: f"tensor {number}: {text}"
        )


def assert_no_less_exact(
    ours: Callable[..., Tensor], reference: Callable[..., Tensor], tensors: Sequence[Tensor], dtype: torch.dtype
) -> None:
    """Each of our errors in this dtype is at most twice that of PyTorch's own ops."""
    rounded = [tensor.to(dtype) for tensor in tensors]
    exact = outcomes(reference, rounded, torch.float64)
    our_errors = relative_errors(outcomes(ours, rounded, dtype), exact)
    their_errors = relative_errors(outcomes(reference, rounded, dtype), exact)
    for number, (our_error, their_error) in enumerate(zip(our_errors, their_errors, strict=True)):
        assert our_error <= 2 * their_error, f"tensor {number}: {our_error} against {their_error}"


def assert_second_derivatives(
    ours: Callable[..., Tensor], reference: Callable[..., Tensor], tensors: Sequence[Tensor]
) -> None:
    """The gradients of a function of the gradients, in float32, are the reference's in float64."""

    def of_the_gradients(function: Callable[..., Tensor], dtype: torch.dtype) -> list[Tensor]:
        leaves = [tensor.detach().to(DEVICE, dtype).requires_grad_() for tensor in tensors]
        first = torch.autograd.grad(function(*leaves).square().sum(), leaves, create_graph=True)
        total = sum((gradient.pow(3).sum() for gradient in first), torch.zeros((), device=DEVICE, dtype=dtype))
        return list(torch.autograd.grad(total, leaves))

    actual, expected = of_the_gradients(ours, torch.float32), of_the_gradients(reference, torch.float64)
    for single, double in zip(actual, expected, strict=True):
        torch.testing.assert_close(single.double(), double, rtol=1e-3, atol=1e-4 * double.abs().max().item())
