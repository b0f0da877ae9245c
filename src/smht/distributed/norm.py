"""LayerNorm over a vector whose channels lie on several ranks (arXiv:1607.06450).

Each rank knows mean and variance of its own channels. From these two numbers a token, those of the whole vector follow
without ever subtracting large numbers of each other (Chan, Golub and LeVeque, 1979), for parts of equal width:

    mean = average of the means
    variance = average of the variances + average of (a part's mean − mean)²

Backward, with `n` the normalised input and `d = gradient · weight`,

    gradient of x = (d − average(d) − n · average(d · n)) / √(variance + eps)

so again two numbers a token cross between ranks.
"""

from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from smht.distributed.ranks import Ranks


class RankLayerNorm(nn.Module):
    """This rank's part of a LayerNorm over the whole vector.

    Args:
        width: `D/P`, channels on this rank; the same on every one.
        eps: added to the variance.
        ranks: who has the other channels.

    Attributes:
        weight: `[D/P]`.
        bias: `[D/P]`.
    """

    def __init__(self, width: int, eps: float, ranks: Ranks) -> None:
        super().__init__()
        self.eps, self.ranks = eps, ranks
        self.weight = nn.Parameter(torch.ones(width))
        self.bias = nn.Parameter(torch.zeros(width))

    def forward(self, x: Tensor) -> Tensor:
        """`[..., D/P]` to `[..., D/P]`; every rank has to call it."""
        return _RankLayerNorm.apply(x, self.weight, self.bias, self.eps, self.ranks)

    def extra_repr(self) -> str:
        """The sizes, for `print(model)`."""
        return f"{self.weight.shape[0]} of {self.weight.shape[0] * self.ranks.size}, eps={self.eps}"


class _RankLayerNorm(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor, eps: float, ranks: Ranks) -> Tensor:
        wide = x.to(torch.promote_types(x.dtype, torch.float32))
        moments = torch.stack(torch.var_mean(wide, dim=-1, correction=0), dim=-1)
        variances, means = ranks.collect(moments).unbind(-1)
        mean = means.mean(0)
        variance = variances.mean(0) + (means - mean).square().mean(0)
        scale = torch.rsqrt(variance + eps)[..., None]
        normalised = (wide - mean[..., None]) * scale
        ctx.ranks = ranks
        ctx.save_for_backward(normalised, scale, weight)
        return torch.addcmul(bias.to(wide.dtype), normalised, weight.to(wide.dtype)).to(x.dtype)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: Any) -> tuple[Tensor, Tensor, Tensor, None, None]:  # pyright: ignore[reportIncompatibleMethodOverride]
        gradient: Tensor = gradients[0]
        normalised, scale, weight = ctx.saved_tensors
        wide = gradient.to(normalised.dtype)
        scaled = wide * weight
        sums = torch.stack([scaled.sum(-1), (scaled * normalised).sum(-1)], dim=-1)
        sending = ctx.ranks.start_sum(sums)
        # What needs nothing from the others is computed while the sums are on their way.
        flat = wide.flatten(0, -2)
        weight_gradient = (flat * normalised.flatten(0, -2)).sum(0).to(weight.dtype)
        bias_gradient = flat.sum(0).to(weight.dtype)
        sending.wait()
        average, correlation = (sums / (wide.shape[-1] * ctx.ranks.size)).split(1, dim=-1)
        x_gradient = (scaled - average - normalised * correlation) * scale
        return x_gradient.to(gradient.dtype), weight_gradient, bias_gradient, None, None
