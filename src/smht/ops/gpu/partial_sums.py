"""Sums over parts, in a fixed order: what stands in for atomic additions, so that gradients are the same every time."""

# ruff: noqa: N803
# pyright: reportMissingImports=false
# (a kernel's constants are written in capitals; Triton is not for every system)

import itertools
from collections.abc import Sequence
from typing import Any

import triton
import triton.language as tl
from torch import Tensor

from smht.ops.gpu.tiles import ceil_div

_BLOCK = 256


@triton.jit
def _sum_kernel(parts, out0, out1, out2, out3, num_parts, end0, end1, end2, end3, BLOCK: tl.constexpr):
    """`parts` is `[num_parts, end3]`; output i takes the columns up to `end_i` that earlier ones left."""
    column = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    total = tl.zeros([BLOCK], tl.float32)
    for _ in range(num_parts):
        total += tl.load(parts + column, mask=column < end3, other=0.0)
        parts += end3
    tl.store(out0 + column, total.to(out0.dtype.element_ty), mask=column < end0)
    tl.store(out1 + column - end0, total.to(out1.dtype.element_ty), mask=(column >= end0) & (column < end1))
    tl.store(out2 + column - end1, total.to(out2.dtype.element_ty), mask=(column >= end1) & (column < end2))
    tl.store(out3 + column - end2, total.to(out3.dtype.element_ty), mask=(column >= end2) & (column < end3))


def sum_parts(parts: Tensor, outputs: Sequence[Tensor]) -> None:
    """Write the sums over the first axis into the outputs, which share the columns in their order.

    Args:
        parts: float32 `[S, N]`, contiguous.
        outputs: one to four contiguous tensors of N elements together.
    """
    outputs = [*outputs, *[outputs[0].new_empty(0)] * (4 - len(outputs))]
    ends = list(itertools.accumulate(output.numel() for output in outputs))
    given: list[Any] = [parts, *outputs, parts.shape[0], *ends, _BLOCK]
    _sum_kernel[(ceil_div(ends[-1], _BLOCK),)](*given)  # pyright: ignore[reportIndexIssue]
