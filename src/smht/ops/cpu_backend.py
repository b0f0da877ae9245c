"""The ops on CPU by kernels of our own: `cpu/*.cpp`, compiled on first use (`smht.ops.build`).

Each op of the contract is one operator of torch, `torch.ops.smht.NAME`, beside `NAME_backward`. What torch needs to
know of them (shapes, gradients, FLOPs) is in `smht.ops.operators`.
"""

import importlib
import threading
from typing import Any

import torch
from torch import Tensor

from smht.errors import SmhtError, first_line
from smht.ops.call import Call, Condition, Worth, always
from smht.ops.conditions import NO_TRANSFORMATION, PLAIN_TENSORS, one_number_type
from smht.ops.decoder_weights import DecoderWeights

NUMBERS = (torch.float32, torch.bfloat16)
WIDEST_HEAD = 256
"""Wider heads' tiles do not stay in cache."""

_reason: str | None = None
_loaded = False
_loading = threading.Lock()


def why_unavailable() -> str | None:
    """What keeps the kernels from running here, or None. The first call loads them, and builds them if need be."""
    global _loaded, _reason
    if _loaded:
        return _reason
    with _loading:
        if not _loaded:
            _reason = _load()
            _loaded = True  # not before: what interrupts a build is no reason, and other threads wait
    return _reason


def _load() -> str | None:
    try:
        from smht.ops import build

        build.load_library()
        importlib.import_module("smht.ops.operators")  # shapes and gradients of what was just loaded
    except SmhtError as error:
        return str(error)
    except Exception as error:  # whatever torch's loader raises, PyTorch's own ops run
        return first_line(error)
    return None


def split_linear(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """See `smht.ops.split_linear`."""
    return torch.ops.smht.split_linear(*_autocast(x, weight, bias))


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
    return torch.ops.smht.split_feed_forward(x, up_weight, down_weight, activation, up_bias, down_bias)


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
) -> Tensor:
    """See `smht.ops.split_attention`.

    Dropout draws one seed from PyTorch's default generator; what is dropped is a function of it and of sequence, head,
    query and key (Philox 4x32-10: Salmon et al. 2011, "Parallel random numbers: as easy as 1, 2, 3").

    Cosines and sines are left as they are under autocast: queries and keys are turned in float32.
    """
    x, *weights = _autocast(x, q_weight, k_weight, v_weight, o_weight)
    seed = torch.randint(2**63 - 1, (1,)) if dropout else None
    return torch.ops.smht.split_attention(x, *weights, is_causal, mask, dropout, scale, seed, cosines, sines)[0]


def linear_cross_entropy(hidden: Tensor, weight: Tensor, labels: Tensor, ignore_index: int) -> Tensor:
    """See `smht.ops.linear_cross_entropy`. Forward computes the gradients that may be asked for."""
    hidden, weight = _autocast(hidden, weight)
    wanted = [torch.is_grad_enabled() and tensor.requires_grad for tensor in (hidden, weight)]
    return torch.ops.smht.linear_cross_entropy(hidden, weight, labels, ignore_index, *wanted)[0]


def permute_channels(x: Tensor, order: Tensor, inverse: Tensor) -> Tensor:
    """See `smht.ops.permute_channels`."""
    return torch.ops.smht.permute_channels(x, order, inverse)


def split_decode(
    x: Tensor,
    weights: DecoderWeights,
    keys: list[Tensor],
    values: list[Tensor],
    past: int,
    mask: Tensor | None,
    rotation: tuple[Tensor, Tensor] | None,
    scale: float,
) -> Tensor:
    """See `smht.ops.split_decode`."""
    return torch.ops.smht.split_decode(
        x,
        weights.projections,
        weights.biases,
        weights.norm_weights,
        weights.norm_biases,
        weights.orders,
        keys,
        values,
        past,
        mask,
        *(rotation or (None, None)),
        weights.activation,
        weights.eps,
        weights.norm_per_head,
        weights.norm_after,
        scale,
    )


def _autocast(*tensors: Tensor | None) -> list[Any]:
    """The tensors as autocast hands them to a matrix product."""
    if not torch.is_autocast_enabled("cpu"):
        return list(tensors)
    dtype = torch.get_autocast_dtype("cpu")
    return [None if tensor is None else tensor.to(dtype) for tensor in tensors]


def _decodes_one_number_type(call: Call) -> bool:
    x, weights, keys, values = call.arguments[:4]
    dtypes = {tensor.dtype for tensor in (x, *weights.numbers, *keys, *values)}
    return len(dtypes) == 1 and x.dtype in NUMBERS


def _mask_is_taken(call: Call) -> bool:
    mask = call.arguments[6]
    return mask is None or (mask.dtype in (torch.bool, *NUMBERS) and not mask.requires_grad)


def _rotation_is_taken(call: Call) -> bool:
    given = [tensor for tensor in call.arguments[9:] if tensor is not None]
    return all(tensor.dtype in NUMBERS and not tensor.requires_grad for tensor in given)


_ANY_NUMBERS = (
    Condition("tensors on the CPU", lambda call: all(tensor.device.type == "cpu" for tensor in call.tensors)),
    PLAIN_TENSORS,
    NO_TRANSFORMATION,
)
_EVERY_OP = (*_ANY_NUMBERS, one_number_type("cpu", NUMBERS))
_SPLIT_OP = (
    *_EVERY_OP,
    Condition(f"heads of at most {WIDEST_HEAD} channels", lambda call: call.arguments[1].shape[1] <= WIDEST_HEAD),
)
CONDITIONS: dict[str, tuple[Condition, ...]] = {
    "split_linear": _SPLIT_OP,
    "split_feed_forward": _SPLIT_OP,
    "split_attention": (
        *_SPLIT_OP,
        Condition("a mask of booleans, float32 or bfloat16 that takes no gradient", _mask_is_taken),
        Condition("a rotation in float32 or bfloat16 that takes no gradient", _rotation_is_taken),
    ),
    "linear_cross_entropy": _EVERY_OP,
    "permute_channels": (
        *_ANY_NUMBERS,
        Condition("real numbers", lambda call: not call.arguments[0].is_complex()),
    ),
    "split_decode": (
        Condition("tensors on the CPU", lambda call: call.arguments[0].device.type == "cpu"),
        Condition("float32 or bfloat16, the same throughout", _decodes_one_number_type),
        Condition("no autocast", lambda _: not torch.is_autocast_enabled("cpu")),
        NO_TRANSFORMATION,
    ),
}


def _computes_in_float32(x: Tensor) -> bool:
    return x.dtype == torch.float32 and not torch.is_autocast_enabled("cpu")


# Calls of which these do not hold are as fast by PyTorch's own ops, by `benchmarks/sweep.py --backend cpu`: calling
# costs more than computing; padding heads to whole vectors costs more than it saves; or what is made of the weights
# once a call does. What most calls fail is asked first.
def _linear_pays(arguments: tuple[Any, ...]) -> bool:
    x, weight = arguments[:2]
    heads, width, _ = weight.shape
    if (width > 8 and width % 64) or heads == 1:
        return False
    return x.numel() >= 512 * heads * width and _computes_in_float32(x)


def _feed_forward_pays(arguments: tuple[Any, ...]) -> bool:
    x = arguments[0]
    tokens = x.numel() // x.shape[-1]
    if tokens < 32:
        return False
    heads, width, _ = arguments[1].shape
    if tokens < 2 * width or heads == 1:
        return False
    if _computes_in_float32(x):
        return width <= 64 or tokens >= 512
    return width in (16, 32, 48, 64) and tokens >= 8 * width


def _attention_pays(arguments: tuple[Any, ...]) -> bool:
    x, weight = arguments[:2]
    batch, length, _ = x.shape
    if length < 8:
        return False
    heads, width, _ = weight.shape
    return 2 * length >= width and 2 * batch * length >= 3 * width and batch * heads >= 2


def _loss_pays(arguments: tuple[Any, ...]) -> bool:
    hidden = arguments[0]
    return 0 < 128 * hidden.shape[-1] <= hidden.numel()


WORTHWHILE: dict[str, Worth] = {
    "split_linear": Worth(
        "float32, two heads, of at most 8 channels or a multiple of 64, 512 tokens in all, and 16384 numbers",
        _linear_pays,
        least_numbers=16384,
    ),
    "split_feed_forward": Worth(
        "two heads, 32 tokens in all, and 1024 numbers; in float32 twice as many tokens as a head has channels, and "
        "512 for heads of more than 64; in bfloat16 eight times as many as a head has channels, which are 16, 32, 48 "
        "or 64",
        _feed_forward_pays,
        least_numbers=1024,
    ),
    "split_attention": Worth(
        "sequences of 8 tokens and half a head's channels, one and a half times as many tokens in all, 1024 numbers, "
        "and two sequences or heads to share out among threads",
        _attention_pays,
        least_numbers=1024,
    ),
    "linear_cross_entropy": Worth("128 tokens in all", _loss_pays),
    # Less work is done faster too, but nobody shall wait for a build for its sake.
    "permute_channels": Worth("4096 numbers", always, least_numbers=4096),
}
