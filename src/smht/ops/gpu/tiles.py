"""What the Triton kernels share: tile sizes, how rows are dealt out, precision of products, loads.

Kernels see an activation `[..., H·K]` as rows `[M, H, K]` by its strides; nothing is transposed or copied for them.
Every tile edge is a power of two of at least 16 (what `tl.dot` takes); odd sizes are masked.
"""

# pyright: reportMissingImports=false
# (Triton is not for every system)

import math
from collections.abc import Callable
from contextlib import AbstractContextManager
from functools import lru_cache
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from smht.ops.gpu_backend import INTERPRETED

exact_float32 = "ieee"
"""How float32 products are made where tf32 is not allowed; `tf32x3` makes each of three products of tf32 numbers."""

_ROWS_PER_SPLIT = 16 if INTERPRETED else 128


def tuned(key: list[str], *tiles: tuple[dict[str, int], int, int]) -> Callable[[Any], Any]:
    """Decorator: choose a kernel's tile sizes by measuring, once for each value of `key` and each set of dtypes.

    Exact float32 products are unrolled multiplications, for which larger tiles than the two of the end take long to
    compile and spill registers; they alone are tried then. In the interpreter, which has nothing to measure, tiles are
    a quarter of the first choice's, so that small shapes have several. A kernel's first argument has the dtype of its
    products.

    Args:
        key: names of the kernel's arguments that the choice depends on.
        tiles: `(tile sizes, warps, stages)` of each choice.
    """
    names = list(tiles[0][0])
    if INTERPRETED:
        return triton.autotune([triton.Config({name: max(16, tiles[0][0][name] // 4) for name in names})], key=key)
    large = [triton.Config(sizes, num_warps=warps, num_stages=stages) for sizes, warps, stages in tiles]
    small = [
        triton.Config({**dict.fromkeys(names, 32), names[0]: 64}, num_warps=8, num_stages=2),
        triton.Config(dict.fromkeys(names, 32), num_warps=4, num_stages=2),
    ]

    def fitting(_: list[triton.Config], arguments: dict[str, Any], **__: Any) -> list[triton.Config]:
        first = next(iter(arguments.values()))
        if first.dtype != torch.float32:
            return large
        if arguments["PRECISION"] == "ieee":
            return small
        return [choice for choice in large if math.prod(choice.kwargs.values()) <= 64 ** len(names)] + small

    return triton.autotune(large + small, key=[*key, "PRECISION"], prune_configs_by={"early_config_prune": fitting})


def ceil_div(whole: int, part: int) -> int:
    """How many parts hold the whole."""
    return -(-whole // part)


def _power_of_two(size: int) -> int:
    return 1 << max(0, size - 1).bit_length()


def padded(size: int) -> int:
    """The edge of a tile that holds `size` elements."""
    return max(16, _power_of_two(size))


def bucket(rows: int) -> int:
    """The number of rows as kernels are tuned by it: a power of two, so that lengths share what was measured."""
    return min(max(_power_of_two(rows), 128), 1 << 17)


def split_rows(rows: int, programs: int, device: torch.device) -> tuple[int, int]:
    """How a sum over rows is cut when each part needs `programs` programs.

    Returns:
        The number of parts, and the rows of each: enough parts to fill the device twice, none of them tiny.
    """
    parts = max(1, min(ceil_div(2 * _multiprocessors(device), programs), rows // (4 * _ROWS_PER_SPLIT)))
    length = ceil_div(ceil_div(rows, parts), _ROWS_PER_SPLIT) * _ROWS_PER_SPLIT
    return ceil_div(rows, length), length


@lru_cache
def _multiprocessors(device: torch.device) -> int:
    return 4 if device.type == "cpu" else torch.cuda.get_device_properties(device).multi_processor_count


def precision() -> str:
    """How float32 products are multiplied, as `torch.set_float32_matmul_precision` asks: `exact_float32` or `tf32`."""
    return exact_float32 if torch.get_float32_matmul_precision() == "highest" else "tf32"


def as_rows(x: Tensor, num_heads: int) -> Tensor:
    """`[..., H·K]` as `[M, H, K]`, a view wherever the leading axes can be merged."""
    return x.reshape(-1, num_heads, x.shape[-1] // num_heads)


def on_device_of(tensor: Tensor) -> AbstractContextManager[Any]:
    """Where Triton launches: the tensor's device, which need not be the current one."""
    return torch.cuda.device_of(tensor)


@triton.jit
def load_tile(start, rows, row_stride, num_rows, columns, column_stride, num_columns):
    """Tile `[rows, columns]` of a matrix, zero outside of it."""
    places = start + rows.to(tl.int64)[:, None] * row_stride + columns[None, :] * column_stride
    return tl.load(places, mask=(rows[:, None] < num_rows) & (columns[None, :] < num_columns), other=0.0)


@triton.jit
def store_tile(start, rows, row_stride, num_rows, columns, column_stride, num_columns, values):
    """Write a tile `[rows, columns]` where it lies inside the matrix."""
    places = start + rows.to(tl.int64)[:, None] * row_stride + columns[None, :] * column_stride
    inside = (rows[:, None] < num_rows) & (columns[None, :] < num_columns)
    tl.store(places, values.to(start.dtype.element_ty), mask=inside)
