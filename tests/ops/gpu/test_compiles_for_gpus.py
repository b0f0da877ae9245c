"""Every kernel is machine code for the GPUs that it is meant for: Triton needs no GPU to compile for one."""

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import Tensor

from helpers.gpu_kernels import HAS_TRITON, INTERPRETED

if INTERPRETED or not HAS_TRITON:
    pytest.skip("needs Triton, not in its interpreter", allow_module_level=True)

from helpers.offline_compilation import launches_of
from smht.ops import gpu  # noqa: F401 - makes the operators, which without a GPU nobody else does
from smht.ops.gpu_backend import split_attention, split_feed_forward, split_linear

SHARED_MEMORY = {80: 163 << 10, 90: 227 << 10}
"""Bytes of shared memory that a program may have, by compute capability."""


def made(*shapes: tuple[int, ...], dtype: torch.dtype) -> list[Tensor]:
    return [torch.zeros(shape, dtype=dtype, requires_grad=True) for shape in shapes]


def linear(dtype: torch.dtype, head_dim: int) -> Tensor:
    return split_linear(*made((2, 64, 2 * head_dim), (2, head_dim, 48), (96,), dtype=dtype))


def feed_forward(dtype: torch.dtype, head_dim: int, activation: str = "gelu") -> Tensor:
    width = 4 * head_dim
    shapes = [(2, 64, 2 * head_dim), (2, head_dim, width), (2, width, head_dim), (2 * width,), (2 * head_dim,)]
    x, up, down, *biases = made(*shapes, dtype=dtype)
    return split_feed_forward(x, up, down, activation, *biases)


def attention(
    dtype: torch.dtype,
    head_dim: int,
    is_causal: bool = True,
    mask: Tensor | None = None,
    dropout: float = 0.0,
    is_turned: bool = False,
) -> Tensor:
    x, residual, *weights = made(*[(2, 64, 2 * head_dim)] * 2, *[(2, head_dim, head_dim)] * 4, dtype=dtype)
    rotation = [torch.zeros(1, 64, head_dim // 2)] * 2 if is_turned else [None, None]
    return split_attention(x, *weights, is_causal, mask, dropout, 0.1, *rotation, residual)


VISIBLE, ADDED = torch.ones(1, 1, 1, 64, dtype=torch.bool), torch.zeros(1, 2, 64, 64).half()
FIRST, LAST = 0, -1
CASES: dict[str, tuple[Callable[[], Tensor], int, int]] = {
    "linear": (lambda: linear(torch.bfloat16, 64), 90, FIRST),
    "linear in float32": (lambda: linear(torch.float32, 24), 80, LAST),
    "feed-forward": (lambda: feed_forward(torch.bfloat16, 64), 90, FIRST),
    "logistic function": (lambda: feed_forward(torch.bfloat16, 32, "silu"), 80, LAST),
    "feed-forward in float32": (lambda: feed_forward(torch.float32, 24, "relu"), 90, LAST),
    "tanh": (lambda: feed_forward(torch.float16, 32, "gelu_tanh"), 90, LAST),
    "squared": (lambda: feed_forward(torch.float16, 32, "relu_squared"), 80, LAST),
    "attention": (lambda: attention(torch.bfloat16, 64), 90, FIRST),
    "attention in float32, added mask": (lambda: attention(torch.float32, 16, False, ADDED), 90, LAST),
    "attention with a rotation, boolean mask and dropout": (
        lambda: attention(torch.float16, 32, False, VISIBLE, 0.1, is_turned=True),
        80,
        LAST,
    ),
}
"""What runs, the compute capability that it is compiled for, and which of its tile sizes are taken."""


@pytest.mark.slow
@pytest.mark.parametrize("case", CASES)
def test_compiles(case: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    work, capability, choice = CASES[case]
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))
    # As in every version so far; unset, Triton 3.9 warns that 3.10 will change it.
    monkeypatch.setenv("TRITON_DEFAULT_FP_FUSION", "1")
    launches = launches_of(lambda: work().sum().backward(), monkeypatch, choice)
    assert len(launches) >= 3
    for launch in launches:
        compiled = launch.compile(capability)
        assert compiled.asm["cubin"]
        assert compiled.metadata.shared <= SHARED_MEMORY[capability]
