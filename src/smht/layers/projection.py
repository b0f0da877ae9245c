"""Projections: block-diagonal per head, or dense (seed 000, section 2)."""

import math
from typing import Self

import torch
from torch import Tensor, nn

from smht import ops
from smht.errors import UsageError


class SplitLinear(nn.Module):
    """A linear map whose matrix is block-diagonal: head `h` reads chunk `h` and writes chunk `h`.

    Behaves like `nn.Linear(in_features, out_features)` with 1/H of its weights and multiplications.

    Args:
        num_heads: `H`.
        in_features: width of the input, a multiple of `H`.
        out_features: width of the output, a multiple of `H`.
        bias: whether a bias `[out_features]` is added.

    Attributes:
        weight: `[H, in_features / H, out_features / H]`; head `h` computes `x_h · weight[h]`.
        bias: `[out_features]` or None.

    Raises:
        UsageError: a size that is not positive or not a multiple of `num_heads`.
    """

    def __init__(
        self,
        num_heads: int,
        in_features: int,
        out_features: int,
        bias: bool = False,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        for name, size in (("in_features", in_features), ("out_features", out_features)):
            if num_heads < 1 or size < 1 or size % num_heads:
                raise UsageError(f"{name} = {size} must be a positive multiple of num_heads = {num_heads}")
        self.num_heads = num_heads
        self.in_features = in_features
        self.out_features = out_features
        self.weight = nn.Parameter(
            torch.empty(num_heads, in_features // num_heads, out_features // num_heads, device=device, dtype=dtype)
        )
        self.bias = nn.Parameter(torch.empty(out_features, device=device, dtype=dtype)) if bias else None
        self.reset_parameters()

    @property
    def fan_in(self) -> int:
        """How many inputs each output sums over: `in_features / H`."""
        return self.in_features // self.num_heads

    def reset_parameters(self) -> None:
        """Draw weights as `nn.Linear` does, uniform in ±1/√fan_in, with the fan-in of a block."""
        bound = 1 / math.sqrt(self.fan_in)
        nn.init.uniform_(self.weight, -bound, bound)
        if self.bias is not None:
            nn.init.uniform_(self.bias, -bound, bound)

    def forward(self, x: Tensor) -> Tensor:
        """`[..., in_features]` to `[..., out_features]`."""
        return ops.split_linear(x, self.weight, self.bias)

    @torch.no_grad()
    def to_dense(self) -> nn.Linear:
        """The `nn.Linear` of the same function: the blocks on the diagonal, zeros elsewhere."""
        dense = nn.Linear(
            self.in_features,
            self.out_features,
            bias=self.bias is not None,
            device=self.weight.device,
            dtype=self.weight.dtype,
        )
        dense.weight.copy_(torch.block_diag(*self.weight).T)
        if self.bias is not None:
            dense.bias.copy_(self.bias)
        return dense

    @classmethod
    @torch.no_grad()
    def from_dense(cls, dense: nn.Linear, num_heads: int) -> Self:
        """The diagonal blocks of a dense layer; what lies off the diagonal is left out."""
        split = cls(
            num_heads,
            dense.in_features,
            dense.out_features,
            bias=dense.bias is not None,
            device=dense.weight.device,
            dtype=dense.weight.dtype,
        )
        blocks = dense.weight.T.view(num_heads, split.fan_in, num_heads, -1)
        split.weight.copy_(torch.stack([blocks[head, :, head] for head in range(num_heads)]))
        if split.bias is not None:
            split.bias.copy_(dense.bias)
        return split

    def extra_repr(self) -> str:
        """The arguments, for `print(model)`."""
        return (
            f"num_heads={self.num_heads}, in_features={self.in_features}, "
            f"out_features={self.out_features}, bias={self.bias is not None}"
        )


def fan_in_of(projection: SplitLinear | nn.Linear) -> int:
    """How many inputs each output sums over: those of one block where the matrix is block-diagonal."""
    return projection.fan_in if isinstance(projection, SplitLinear) else projection.in_features


def make_projection(
    split: bool, num_heads: int, in_features: int, out_features: int, bias: bool = False
) -> SplitLinear | nn.Linear:
    """A `SplitLinear` if `split`, else the dense `nn.Linear` of the same widths."""
    if split:
        return SplitLinear(num_heads, in_features, out_features, bias=bias)
    return nn.Linear(in_features, out_features, bias=bias)
