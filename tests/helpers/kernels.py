"""What tests of kernels share: exact results, and the errors that PyTorch's own ops make."""

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace

import pytest
import torch
from torch import Tensor

from helpers.tensors import value_and_gradients
from smht.ops import backend


def assert_rounds_like(
    kernel: Callable[..., Tensor], reference: Callable[..., Tensor], *tensors: Tensor, factor: float = 2.0
) -> None:
    """Value and gradients of `kernel` are at most `factor` times as far from the exact ones as those of `reference`.

    Distances are Euclidean norms; exact is what the reference gives in float64. In a few thousand numbers the
    reference may be exact by luck, so some units in the last place are let pass, as where all cancels: in the gradient
    of a softmax over one key. Luck varies, so the tests that call this draw the same cases every time.
    """
    dtype = tensors[0].dtype
    exact = value_and_gradients(reference, *(tensor.double() for tensor in tensors))
    theirs = value_and_gradients(reference, *tensors)
    ours = value_and_gradients(kernel, *tensors)
    scale = max(tensor.norm().item() for tensor in exact if tensor.numel()) if exact[0].numel() else 0.0
    for place, (our, their, truth) in enumerate(zip(ours, theirs, exact, strict=True)):
        assert our.dtype == their.dtype == dtype and our.shape == their.shape, place
        our_error, their_error = ((result.double() - truth).norm().item() for result in (our, their))
        units = 8 if truth.numel() < 4096 or truth.norm() < 1e-9 * scale else 0.5
        floor = units * torch.finfo(dtype).eps * scale
        assert our_error <= factor * their_error + floor, (place, our_error, their_error)


@contextmanager
def cpu_kernels() -> Iterator[None]:
    """The backend `cpu` chosen, and the reference refusing to take calls from it. Skips where it cannot run."""
    if reason := backend.BACKENDS["cpu"].why_unavailable():
        pytest.skip(reason)

    def refuse(*_: object) -> Tensor:
        raise AssertionError("the reference computed what a kernel should have")

    chosen, row = backend._chosen, backend.BACKENDS["reference"]
    backend.set_backend("cpu")
    backend.BACKENDS["reference"] = replace(row, functions=dict.fromkeys(backend.OPS, refuse))
    yield
    backend._chosen, backend.BACKENDS["reference"] = chosen, row


def random_rotation(batch: int, tokens: int, width: int, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """Cosines and sines `[B, T, K/2]` of angles all around the circle."""
    angles = torch.rand(batch, tokens, width // 2, dtype=torch.float64) * 2 * math.pi
    return angles.cos().to(dtype), angles.sin().to(dtype)


def attention_inputs(batch: int, tokens: int, heads: int, width: int, dtype: torch.dtype) -> list[Tensor]:
    """`x` and the weights of q, k, v and o, such that outputs are about as large as inputs."""
    x = torch.randn(batch, tokens, heads * width, dtype=torch.float64)
    weights = torch.randn(4, heads, width, width, dtype=torch.float64) / width**0.5
    return [tensor.to(dtype) for tensor in (x, *weights)]
