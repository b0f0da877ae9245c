"""The ops on NVIDIA GPUs by kernels of our own in Triton: `gpu/*.py`, compiled by Triton when they first run.

Each op of the contract is one operator of torch, `torch.ops.smht_gpu.NAME`. In Triton's interpreter
(`TRITON_INTERPRET=1` when Triton is imported) the kernels run, very slowly, on tensors of the CPU: for tests.
"""

import importlib
import importlib.util
import os
import warnings
from functools import cache
from typing import Any

import torch
from torch import Tensor

from smht.errors import first_line
from smht.ops.call import Call, Condition, Worth, never
from smht.ops.conditions import NO_TRANSFORMATION, PLAIN_TENSORS, name_types, number_types, one_number_type

INTERPRETED = os.environ.get("TRITON_INTERPRET", "").lower() in ("1", "true", "yes", "on", "y")
"""Whether kernels run in Triton's interpreter."""

DEVICE = "cpu" if INTERPRETED else "cuda"
"""The kind of device on which kernels run."""

OLDEST_CAPABILITY = (8, 0)
"""Compute capability from which on tensor cores take bfloat16."""
_OLDEST = ".".join(map(str, OLDEST_CAPABILITY))

# The interpreter's bfloat16 is wrong, a fault of its own.
NUMBERS = (torch.float32, torch.float16) if INTERPRETED else (torch.float32, torch.float16, torch.bfloat16)
WIDEST_FEED_FORWARD, WIDEST_ATTENTION = 256, 128
"""Channels of a head, of which a tile holds all; half as many in float32."""

MOST_DROPOUT_TOKENS = 1 << 16
"""Each attention weight of a head has a 32-bit counter of its own."""


@cache
def why_unavailable() -> str | None:
    """What keeps the kernels from running here, or None. The first call imports Triton, where there is a GPU."""
    if not INTERPRETED and (reason := _why_no_gpu()):
        return reason
    if importlib.util.find_spec("triton") is None:
        return "Triton is not installed"
    try:
        importlib.import_module("smht.ops.gpu")
    except Exception as error:  # a Triton that does not fit its GPU driver, or another that we cannot foresee
        return f"Triton cannot be loaded: {first_line(error)}"
    return None


def _why_no_gpu() -> str | None:
    with warnings.catch_warnings():
        # PyTorch warns of drivers that are too old, where it then says that there is no GPU.
        warnings.simplefilter("ignore")
        count = torch.cuda.device_count() if torch.version.cuda and torch.cuda.is_available() else 0
    if not count:
        return "no NVIDIA GPU"
    if not any(_is_recent(torch.device("cuda", number)) for number in range(count)):
        return f"{torch.cuda.get_device_name(0)} is older than compute capability {_OLDEST}"
    return None


@cache
def _is_recent(device: torch.device) -> bool:
    return torch.cuda.get_device_capability(device) >= OLDEST_CAPABILITY


def split_linear(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """See `smht.ops.split_linear`."""
    return torch.ops.smht_gpu.split_linear(*_autocast(x, weight, bias))


def split_feed_forward(
    x: Tensor,
    up_weight: Tensor,
    down_weight: Tensor,
    activation: str,
    up_bias: Tensor | None,
    down_bias: Tensor | None,
) -> Tensor:
    """See `smht.ops.split_feed_forward`."""
    x, up_weight, down_weight, up_bias, down_bias = _autocast(x, up_weight, down_weight, up_bias, down_bias)
    return torch.ops.smht_gpu.split_feed_forward(x, up_weight, down_weight, activation, up_bias, down_bias)


def split_attention(
    x: Tensor,
    q_weight: Tensor,
    k_weight: Tensor,
    v_weight: Tensor,
    o_weight: Tensor,
    is_causal: bool,
    mask: Tensor | None,
    dropout: float,
    scale: float,
    cosines: Tensor | None = None,
    sines: Tensor | None = None,
    residual: Tensor | None = None,
) -> Tensor:
    """See `smht.ops.split_attention`. A token that may attend to nothing gives zeros.

    Dropout draws one seed from PyTorch's default generator of the device; what is dropped is a function of it and of
    sequence, head, query and key (Philox: Salmon et al. 2011, "Parallel random numbers: as easy as 1, 2, 3").

    Cosines and sines are left as they are under autocast: queries and keys are turned in float32.

    Args:
        residual: `[B, T, D]`, added to the output as it is written. The contract has none.
    """
    tensors = _autocast(x, q_weight, k_weight, v_weight, o_weight, residual)
    needs_gradient = torch.is_grad_enabled() and any(tensor is not None and tensor.requires_grad for tensor in tensors)
    seed = torch.randint(2**62, (1,), device=x.device) if dropout else None
    return torch.ops.smht_gpu.split_attention(
        *tensors[:5], mask, tensors[5], seed, cosines, sines, is_causal, dropout, scale, needs_gradient
    )[0]


def _autocast(*tensors: Tensor | None) -> list[Any]:
    """The tensors as autocast hands them to a matrix product."""
    if not torch.is_autocast_enabled(DEVICE):
        return list(tensors)
    dtype = torch.get_autocast_dtype(DEVICE)
    return [None if tensor is None else tensor.to(dtype) for tensor in tensors]


def _is_on_one_device(call: Call) -> bool:
    device = call.arguments[0].device
    return (
        device.type == DEVICE
        and all(tensor.device == device for tensor in call.tensors)
        and (INTERPRETED or _is_recent(device))
    )


def _narrow_heads(widest: int) -> Condition:
    def holds(call: Call) -> bool:
        is_float32 = torch.float32 in number_types(call, DEVICE)
        return call.arguments[1].shape[1] <= (widest // 2 if is_float32 else widest)

    return Condition(f"heads of at most {widest} channels, {widest // 2} in float32", holds)


def _mask_is_taken(call: Call) -> bool:
    mask = call.arguments[6]
    return mask is None or (mask.dtype in (torch.bool, *NUMBERS) and not mask.requires_grad)


def _rotation_is_taken(call: Call) -> bool:
    given = [tensor for tensor in call.arguments[9:] if tensor is not None]
    return all(tensor.dtype in NUMBERS and not tensor.requires_grad for tensor in given)


def _dropout_is_taken(call: Call) -> bool:
    return not call.arguments[7] or call.arguments[0].shape[1] <= MOST_DROPOUT_TOKENS


_GPU = f"one NVIDIA GPU of compute capability {_OLDEST} or newer"
_EVERY_OP = (
    Condition("tensors on the CPU" if INTERPRETED else f"tensors on {_GPU}", _is_on_one_device),
    PLAIN_TENSORS,
    one_number_type(DEVICE, NUMBERS),
    NO_TRANSFORMATION,
)
CONDITIONS: dict[str, tuple[Condition, ...]] = {
    "split_linear": _EVERY_OP,
    "split_feed_forward": (*_EVERY_OP, _narrow_heads(WIDEST_FEED_FORWARD)),
    "split_attention": (
        *_EVERY_OP,
        _narrow_heads(WIDEST_ATTENTION),
        Condition(f"a mask of booleans, {name_types(NUMBERS)} that takes no gradient", _mask_is_taken),
        Condition(f"at most {MOST_DROPOUT_TOKENS} tokens if there is dropout", _dropout_is_taken),
        Condition(f"a rotation in {name_types(NUMBERS)} that takes no gradient", _rotation_is_taken),
    ),
}

_NOT_BY_ITSELF = Worth("set_backend('gpu'): its kernels have not run on a GPU yet", never)
WORTHWHILE: dict[str, Worth] = dict.fromkeys(CONDITIONS, _NOT_BY_ITSELF)
"""Never by itself before `benchmarks/gpu.sh` has checked and timed the kernels on a GPU."""
