"""The ops on CPU by kernels of our own: `cpu/*.cpp`, compiled on first use (`smht.ops.build`).

Each op of the contract is one operator of torch, `torch.ops.smht.NAME`, beside `NAME_backward`. What torch needs to
know of them (shapes, gradients, FLOPs) is in `smht.ops.operators`.
"""

import importlib
from typing import Any

import torch
from torch import Tensor, nn

from smht.errors import SmhtError, first_line
from smht.ops.call import Call, Condition
from smht.ops.decoder_weights import DecoderWeights

NUMBERS = (torch.float32, torch.bfloat16)
WIDEST_HEAD = 256
"""Wider heads' tiles do not stay in cache."""

_reason: str | None = None
_loaded = False


def why_unavailable() -> str | None:
    """What keeps the kernels from running here, or None. The first call loads them, and builds them if need be."""
    global _loaded, _reason
    if not _loaded:
        _loaded = True
        try:
            from smht.ops import build

            build.load_library()
            importlib.import_module("smht.ops.operators")  # shapes and gradients of what was just loaded
        except (SmhtError, ImportError) as error:
            _reason = first_line(error)
    return _reason


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
) -> Tensor:
    """See `smht.ops.split_attention`.

    Dropout draws one seed from PyTorch's default generator; what is dropped is a function of it and of sequence, head,
    query and key (Philox 4x32-10: Salmon et al. 2011, "Parallel random numbers: as easy as 1, 2, 3").
    """
    x, *weights = _autocast(x, q_weight, k_weight, v_weight, o_weight)
    seed = torch.randint(2**63 - 1, (1,)) if dropout else None
    return torch.ops.smht.split_attention(x, *weights, is_causal, mask, dropout, scale, seed)[0]


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


def _numbers(call: Call) -> set[torch.dtype]:
    """The dtypes of x, weights and biases once autocast has had its way."""
    mask = call.arguments[6] if call.op == "split_attention" else None
    dtypes = {tensor.dtype for tensor in call.tensors if tensor is not mask}
    if torch.is_autocast_enabled("cpu") and torch.float64 not in dtypes:
        return {torch.get_autocast_dtype("cpu")}
    return dtypes


def _has_one_number_type(call: Call) -> bool:
    numbers = _numbers(call)
    return len(numbers) == 1 and next(iter(numbers)) in NUMBERS


def _is_plain(call: Call) -> bool:
    return not (
        torch.compiler.is_exporting()
        or torch.jit.is_tracing()  # pyright: ignore[reportPrivateImportUsage]
        or torch.autograd.forward_ad._current_level >= 0
        or torch._C._are_functorch_transforms_active()
    )


def _tokens(call: Call) -> int:
    x = call.arguments[0]
    return x.numel() // max(1, x.shape[-1])


def _decodes_one_number_type(call: Call) -> bool:
    x, weights, keys, values = call.arguments[:4]
    dtypes = {tensor.dtype for tensor in (x, *weights.numbers, *keys, *values)}
    return len(dtypes) == 1 and x.dtype in NUMBERS


def _mask_is_taken(call: Call) -> bool:
    mask = call.arguments[6]
    return mask is None or (mask.dtype in (torch.bool, *NUMBERS) and not mask.requires_grad)


_EVERY_OP = (
    Condition("tensors on the CPU", lambda call: all(tensor.device.type == "cpu" for tensor in call.tensors)),
    Condition("plain tensors", lambda call: all(type(tensor) in (Tensor, nn.Parameter) for tensor in call.tensors)),
    Condition("float32 or bfloat16, the same throughout", _has_one_number_type),
    Condition(f"heads of at most {WIDEST_HEAD} channels", lambda call: call.arguments[1].shape[1] <= WIDEST_HEAD),
    Condition("no export, no forward-mode and no vmapped derivative", _is_plain),
)
CONDITIONS: dict[str, tuple[Condition, ...]] = {
    "split_linear": _EVERY_OP,
    "split_feed_forward": _EVERY_OP,
    "split_attention": (
        *_EVERY_OP,
        Condition("a mask of booleans, float32 or bfloat16 that takes no gradient", _mask_is_taken),
    ),
    "split_decode": (
        Condition("tensors on the CPU", lambda call: call.arguments[0].device.type == "cpu"),
        Condition("float32 or bfloat16, the same throughout", _decodes_one_number_type),
        Condition("no autocast", lambda call: not torch.is_autocast_enabled("cpu")),
        Condition("no export, no forward-mode and no vmapped derivative", _is_plain),
    ),
}

# Below these sizes PyTorch's own ops were measured to be as fast or faster: calling costs more than computing, or, in
# attention, products of weights that the kernel makes once a call cost more than they save.
_MANY_TOKENS = Condition("at least 32 tokens in all", lambda call: _tokens(call) >= 32)
WORTHWHILE: dict[str, tuple[Condition, ...]] = {
    "split_linear": (_MANY_TOKENS, Condition("32768 numbers", lambda call: call.arguments[0].numel() >= 32768)),
    "split_feed_forward": (_MANY_TOKENS, Condition("1024 numbers", lambda call: call.arguments[0].numel() >= 1024)),
    "split_attention": (
        _MANY_TOKENS,
        Condition("as many tokens as a head has channels", lambda call: _tokens(call) >= call.arguments[1].shape[1]),
        Condition(
            "two sequences or heads to share out among threads",
            lambda call: call.arguments[0].shape[0] * call.arguments[1].shape[0] >= 2,
        ),
    ),
}
