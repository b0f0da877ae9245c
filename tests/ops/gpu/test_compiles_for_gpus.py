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
from smht.ops.activation import ACTIVATIONS
from smht.ops.gpu import split_attention, split_feed_forward, split_linear

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
    dtype: torch.dtype, head_dim: int, is_causal: bool = True, mask: Tensor | None = None, dropout: float = 0.0
) -> Tensor:
    x, residual, *weights = made(*[(2, 64, 2 * head_dim)] * 2, *[(2, head_dim, head_dim)] * 4, dtype=dtype)
    return split_attention(x, *weights, is_causal, mask, dropout, 0.1, residual=residual)


OPS: dict[str, Callable[[torch.dtype, int], Tensor]] = {
    "linear": linear,
    "feed_forward": feed_forward,
    "attention": attention,
}


def check(
    work: Callable[[], Tensor], monkeypatch: pytest.MonkeyPatch, cache: Path, capability: int, choice: int
) -> None:
    monkeypatch.setenv("TRITON_CACHE_DIR", str(cache))
    # As in every version so far; unset, Triton 3.9 warns that 3.10 will change it.
    monkeypatch.setenv("TRITON_DEFAULT_FP_FUSION", "1")
    launches = launches_of(lambda: work().sum().backward(), monkeypatch, choice)
    assert len(launches) >= 3
    for launch in launches:
        compiled = launch.compile(capability)
        assert compiled.asm["cubin"]
        assert compiled.metadata.shared <= SHARED_MEMORY[capability]


@pytest.mark.slow
@pytest.mark.parametrize("capability", [80, 90])
@pytest.mark.parametrize("op", OPS)
def test_with_the_first_tile_sizes(op: str, capability: int, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    check(lambda: OPS[op](torch.bfloat16, 64), monkeypatch, tmp_path, capability, choice=0)


@pytest.mark.slow
@pytest.mark.parametrize("op", OPS)
def test_float32_with_the_last_tile_sizes(op: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    check(lambda: OPS[op](torch.float32, 24), monkeypatch, tmp_path, 90, choice=-1)


@pytest.mark.slow
@pytest.mark.parametrize("activation", sorted(ACTIVATIONS.keys() - {"gelu"}))
def test_every_activation(activation: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    check(lambda: feed_forward(torch.float16, 32, activation), monkeypatch, tmp_path, 90, choice=-1)


@pytest.mark.slow
@pytest.mark.parametrize("mask", [torch.ones(1, 1, 1, 64, dtype=torch.bool), torch.zeros(1, 2, 64, 64).half()])
def test_masks_and_dropout(mask: Tensor, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    check(lambda: attention(torch.float16, 32, False, mask, 0.1), monkeypatch, tmp_path, 90, choice=-1)
