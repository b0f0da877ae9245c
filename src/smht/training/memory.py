"""Whether a model fits into memory, told before it is built."""

import psutil
import torch

from smht.errors import UsageError
from smht.inspection.accounting import account
from smht.models import SmhtConfig
from smht.training.quantities import format_size

_BYTES_PER_PARAMETER = 16
"""A weight, its gradient and AdamW's two moments in fp32."""


def refuse_if_too_large(config: SmhtConfig, batch_size: int, context: int, device: str) -> None:
    """Refuse what cannot be trained here, rather than fill the memory and be killed.

    Raises:
        UsageError: even the least that training takes is more than is free.
    """
    needed, free = least_bytes(config, batch_size, context), _free_bytes(device)
    if needed > free:
        raise UsageError(
            f"{account(config).total.parameters:,} parameters and batches of {batch_size:,} × {context:,} tokens need "
            f"at least {format_size(needed)} of memory, and {device} has {format_size(free)} free: "
            "take a smaller model, --batch-size or --context"
        )


def least_bytes(config: SmhtConfig, batch_size: int, context: int) -> int:
    """A lower bound: the optimizer's state, and what each block of fused sub-layers keeps for backward.

    That is the input of either norm and of either sub-layer, and the output of attention.
    """
    activations = batch_size * context * 5 * config.num_hidden_layers * config.hidden_size * 4
    return _BYTES_PER_PARAMETER * account(config).total.parameters + activations


def _free_bytes(device: str) -> int:
    if device == "cuda":
        return torch.cuda.mem_get_info()[0]
    return psutil.virtual_memory().available
