"""Conditions that more than one backend sets for its calls."""

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from smht.ops.call import Call, Condition

_FACTORS = {"split_attention": 5, "linear_cross_entropy": 2}
"""How many of an op's first arguments are factors of its products, where others are tensors too."""


def number_types(call: Call, device: str) -> set[torch.dtype]:
    """The dtypes of x, weights and biases once autocast on this kind of device has had its way."""
    factors = call.arguments[: _FACTORS.get(call.op)]
    dtypes = {factor.dtype for factor in factors if isinstance(factor, Tensor)}
    takes_part = all(dtype.is_floating_point and dtype != torch.float64 for dtype in dtypes)
    if torch.is_autocast_enabled(device) and takes_part:
        return {torch.get_autocast_dtype(device)}
    return dtypes


def one_number_type(device: str, dtypes: Sequence[torch.dtype]) -> Condition:
    """All numbers of one dtype, and that one of these."""

    def holds(call: Call) -> bool:
        found = number_types(call, device)
        return len(found) == 1 and next(iter(found)) in dtypes

    return Condition(f"{name_types(dtypes)}, the same throughout", holds)


def name_types(dtypes: Sequence[torch.dtype]) -> str:
    """`float32, float16 or bfloat16`."""
    names = [str(dtype).removeprefix("torch.") for dtype in dtypes]
    return " or ".join(filter(None, (", ".join(names[:-1]), names[-1])))


def _is_plain(call: Call) -> bool:
    return not (
        torch.compiler.is_exporting()
        or torch.jit.is_tracing()  # pyright: ignore[reportPrivateImportUsage]
        or torch.autograd.forward_ad._current_level >= 0
        or torch._C._are_functorch_transforms_active()
    )


PLAIN_TENSORS = Condition(
    "plain tensors", lambda call: all(type(tensor) in (Tensor, nn.Parameter) for tensor in call.tensors)
)
NO_TRANSFORMATION = Condition("no export, no forward-mode and no vmapped derivative", _is_plain)
