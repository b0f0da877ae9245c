"""The element-wise functions that a feed-forward sub-layer may use, by their usual names."""

from collections.abc import Callable
from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor

ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "gelu": F.gelu,
    "gelu_tanh": partial(F.gelu, approximate="tanh"),
    "relu": F.relu,
    "relu_squared": lambda x: torch.square(F.relu(x)),
    "silu": F.silu,
}
"""Activation by name; `gelu` is the exact one, x·Φ(x) (seed 000, reference 3: arXiv:1606.08415)."""
