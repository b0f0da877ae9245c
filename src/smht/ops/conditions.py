"""Conditions that more than one backend sets for its calls."""

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from smht.ops.call import Call, Condition


def number_types(call: Call, device: str) -> set[torch.dtype]:
    """The dtypes of x, weights and biases once autocast on this kind of device has had its way."""
    # What an attention takes besides x and four weights is no factor of its products.
    numbers = call.arguments[:5] if call.op == "split_attention" else call.tensors
    dtypes = {tensor.dtype for tensor in numbers}
    if torch.is_autocast_enabled(device) and torch.float64 not in dtypes:
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
