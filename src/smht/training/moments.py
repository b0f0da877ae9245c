"""AdamW's moments in checkpoints: by name of parameter, in files that any number of ranks writes and reads."""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

MOMENTS = "moments"
"""The folder of a checkpoint that has them."""

_KINDS = ("exp_avg", "exp_avg_sq")


def without_moments(state: Mapping[str, Any]) -> dict[str, Any]:
    """An optimizer's `state_dict` but for its moments: steps, rates, which parameters are in which group."""
    rest = {
        number: {name: value for name, value in own.items() if name not in _KINDS}
        for number, own in state["state"].items()
    }
    return {**state, "state": rest}


def moments_of(optimizer: Any, parameters: Mapping[str, nn.Parameter]) -> dict[tuple[str, str], Tensor]:
    """The moments of every parameter that has been learnt, by its name and theirs; made where they are missing."""
    found: dict[tuple[str, str], Tensor] = {}
    for name, parameter in parameters.items():
        own = optimizer.state.get(parameter)
        for kind in _KINDS if own else ():
            if kind not in own:
                own[kind] = torch.zeros_like(parameter.detach(), memory_format=torch.preserve_format)
            found[name, kind] = own[kind]
    return found
