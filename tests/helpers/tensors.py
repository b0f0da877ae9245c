"""What tests on tensors share: the dense form of split weights, and values beside gradients."""

from collections.abc import Callable, Sequence

import torch
from torch import Tensor


def embed_blocks(weight: Tensor) -> Tensor:
    """Blocks `[H, I, O]` on the diagonal of `[H·I, H·O]`, so that `x @ embed_blocks(weight)` is the split map."""
    return torch.block_diag(*weight)


def permutation_matrix(order: Tensor, dtype: torch.dtype = torch.float64) -> Tensor:
    """`[D, D]` with `x @ matrix == x[..., order]`."""
    matrix = torch.zeros(len(order), len(order), dtype=dtype)
    for place, channel in enumerate(order.tolist()):
        matrix[channel, place] = 1
    return matrix


def value_and_gradients(function: Callable[..., Tensor], *tensors: Tensor, seed: int = 0) -> list[Tensor]:
    """The function's output, then the gradient of a random weighting of it by each tensor."""
    leaves = [tensor.detach().requires_grad_() for tensor in tensors]
    output = function(*leaves)
    weighting = torch.randn(output.shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))
    gradients = torch.autograd.grad((output * weighting.to(output.dtype)).sum(), leaves)
    return [output.detach(), *gradients]


def assert_all_close(actual: Sequence[Tensor], expected: Sequence[Tensor], tolerance: float = 1e-10) -> None:
    """Each pair of tensors agrees in shape, dtype and, within the tolerance, in value."""
    assert len(actual) == len(expected)
    for number, (ours, theirs) in enumerate(zip(actual, expected, strict=True)):
        torch.testing.assert_close(
            ours, theirs, rtol=tolerance, atol=tolerance, msg=lambda text, number=number: f"tensor {number}: {text}"
        )


def relative_errors(rounded: Sequence[Tensor], exact: Sequence[Tensor]) -> list[float]:
    """‖rounded - exact‖ / ‖exact‖ of each pair."""
    return [((ours.double() - truth).norm() / truth.norm()).item() for ours, truth in zip(rounded, exact, strict=True)]
