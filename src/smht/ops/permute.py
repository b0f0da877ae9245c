"""The contract of the reordering of channels."""

from torch import Tensor

from smht.errors import UsageError
from smht.ops.backend import run


def permute_channels(x: Tensor, order: Tensor, inverse: Tensor) -> Tensor:
    """Reorder the last axis: `y[..., j] = x[..., order[j]]`.

    Args:
        x: `[..., D]`.
        order: `[D]`, int64, a permutation.
        inverse: `[D]`, int64, its inverse: `order[inverse[j]] = j`.

    Returns:
        `[..., D]`, contiguous.

    Raises:
        UsageError: an order or an inverse of another length.
    """
    if not x.shape[-1:] == order.shape == inverse.shape:
        raise UsageError(
            f"permute_channels: order and inverse must be [{x.shape[-1] if x.dim() else 1}], as wide as x; "
            f"got {list(order.shape)} and {list(inverse.shape)}"
        )
    return run("permute_channels", x, order, inverse)
