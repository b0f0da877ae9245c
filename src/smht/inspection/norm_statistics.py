"""A LayerNorm's mean and variance apart from what it does with them, so that they can be held."""

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from smht.layers import HeadLayerNorm

NORMS = (nn.LayerNorm, HeadLayerNorm)
"""The classes of every norm in a model."""


@dataclass(frozen=True)
class NormStatistics:
    """What a norm subtracts, and the variance that it divides by.

    Attributes:
        mean: `[..., 1]`, or `[..., H, 1]` of a norm a head.
        variance: likewise, without the norm's `eps`.
    """

    mean: Tensor
    variance: Tensor


@torch.no_grad()
def measure(norm: nn.LayerNorm | HeadLayerNorm, x: Tensor) -> NormStatistics:
    """The statistics of `x` `[..., D]`; no gradient passes through them."""
    chunks = _chunks(norm, x)
    return NormStatistics(chunks.mean(-1, keepdim=True), chunks.var(-1, correction=0, keepdim=True))


def normalise(norm: nn.LayerNorm | HeadLayerNorm, x: Tensor, statistics: NormStatistics) -> Tensor:
    """`(x − μ) / √(σ² + ε) · γ + β` with `μ` and `σ²` given, `[..., D]`."""
    normalised = (_chunks(norm, x) - statistics.mean) * torch.rsqrt(statistics.variance + norm.eps)
    if isinstance(norm, HeadLayerNorm):
        normalised = normalised.flatten(-2)
        normalised = normalised if norm.shuffle is None else norm.shuffle.undo(normalised)
    return (normalised * norm.weight + norm.bias).to(x.dtype)


def _chunks(norm: nn.LayerNorm | HeadLayerNorm, x: Tensor) -> Tensor:
    """What the statistics are taken over, on the last axis; as precise as the norm itself is in half precision."""
    x = x.to(torch.promote_types(x.dtype, torch.float32))
    if not isinstance(norm, HeadLayerNorm):
        return x
    return (x if norm.shuffle is None else norm.shuffle(x)).unflatten(-1, (norm.num_heads, -1))
