"""Which device a run, or what uses one, computes on."""

import torch

from smht.errors import UsageError


def resolve_device(name: str) -> str:
    """`cuda`, `mps` or `cpu` for `auto`; otherwise the device asked for, if it is there.

    Raises:
        UsageError: an unknown device, or one that this machine does not have.
    """
    available = {"cuda": torch.cuda.is_available(), "mps": torch.backends.mps.is_available(), "cpu": True}
    if name == "auto":
        return next(device for device, there in available.items() if there)
    if name not in available:
        raise UsageError(f"device = {name!r}: choose from auto, {', '.join(available)}")
    if not available[name]:
        raise UsageError(f"this machine, or this build of PyTorch, has no {name!r} device: use --device auto")
    return name
