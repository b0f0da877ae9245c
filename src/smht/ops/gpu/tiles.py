"""What the Triton kernels share: tile sizes, how rows are dealt out, precision of products, loads.

Kernels see an activation `[..., H·K]` as rows `[M, H, K]` by its strides; nothing is transposed or copied for them.
Every tile edge is a power of two of at least 16 (what `tl.dot` takes); odd sizes are masked.
"""

import math
from collections.abc import Callable, Iterable
from functools import lru_cache
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

INTERPRETED: bool = bool(triton.knobs.runtime.interpret)
"""Whether kernels run in Triton's interpreter, on tensors of the CPU."""

DTYPES = (torch.float32, torch.float16, torch.bfloat16)
"""The dtypes that the kernels take; sums are kept in float32."""

_ROWS_PER_SPLIT = 16 if INTERPRETED else 128


def tuned(key: list[str], *tiles: tuple[dict[str, int], int, int]) -> Callable[[Any], Any]:
    """Decorator: choose a kernel's tile sizes by measuring, once for each value of `key` and each set of dtypes.

    In the interpreter, which has nothing to measure, tiles are a quarter of the first choice's, so that small shapes
    have several.

    Args:
        key: names of the kernel's arguments that the choice depends on.
        tiles: `(tile sizes, warps, stages)` of each choice.
    """
    if INTERPRETED:
        configurations = [triton.Config({name: max(16, size // 4) for name, size in tiles[0][0].items()})]
    else:
        configurations = [triton.Config(sizes, num_warps=warps, num_stages=stages) for sizes, warps, stages in tiles]
    return triton.autotune(
        configurations, key=[*key, "PRECISION"], prune_configs_by={"early_config_prune": _without_large_tiles}
    )


def _without_large_tiles(
    configurations: list[triton.Config], arguments: dict[str, Any], **_: Any
) -> list[triton.Config]:
    """Exact float32 products are unrolled multiplications: large tiles take minutes to compile and spill registers."""
    if arguments["PRECISION"] != "ieee" or arguments["x"].dtype != torch.float32:
        return configurations
    small = [choice for choice in configurations if math.prod(choice.kwargs.values()) <= 64 ** len(choice.kwargs)]
    return small or configurations[-1:]


def padded(size: int) -> int:
    """The edge of a tile that holds `size` elements."""
    return max(16, triton.next_power_of_2(size))


def bucket(rows: int) -> int:
    """The number of rows as kernels are tuned by it: a power of two, so that lengths share what was measured."""
    return min(max(triton.next_power_of_2(rows), 128), 1 << 17)


def split_rows(rows: int, programs: int, device: torch.device) -> tuple[int, int]:
    """How a sum over rows is cut when each part needs `programs` programs.

    Returns:
        The number of parts, and the rows of each: enough parts to fill the device twice, none of them tiny.
    """
    parts = max(1, min(triton.cdiv(2 * _multiprocessors(device), programs), rows // (4 * _ROWS_PER_SPLIT)))
    length = triton.cdiv(triton.cdiv(rows, parts), _ROWS_PER_SPLIT) * _ROWS_PER_SPLIT
    return triton.cdiv(rows, length), length


@lru_cache
def _multiprocessors(device: torch.device) -> int:
    return 4 if device.type == "cpu" else torch.cuda.get_device_properties(device).multi_processor_count


def precision() -> str:
    """How float32 products are multiplied, as `torch.set_float32_matmul_precision` asks: `ieee` or `tf32`."""
    return "ieee" if torch.get_float32_matmul_precision() == "highest" else "tf32"


def as_rows(x: Tensor, num_heads: int) -> Tensor:
    """`[..., H·K]` as `[M, H, K]`, a view wherever the leading axes can be merged."""
    return x.reshape(-1, num_heads, x.shape[-1] // num_heads)


def autocast(*tensors: Tensor | None) -> list[Tensor | None]:
    """The tensors in the dtype of the autocast region that we are in, unchanged outside of one.

    Args:
        tensors: the first decides the device.
    """
    device = next(tensor.device.type for tensor in tensors if tensor is not None)
    if not (torch.amp.is_autocast_available(device) and torch.is_autocast_enabled(device)):
        return list(tensors)
    dtype = torch.get_autocast_dtype(device)
    return [None if tensor is None else tensor.to(dtype) for tensor in tensors]


def any_requires_grad(tensors: Iterable[Tensor | None]) -> bool:
    """Whether autograd will ask for a gradient of what is computed from these."""
    return torch.is_grad_enabled() and any(tensor is not None and tensor.requires_grad for tensor in tensors)


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
