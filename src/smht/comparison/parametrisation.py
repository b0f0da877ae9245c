"""How fast which weights of a model learn: the one place to change it for all that the plain loop trains."""

from typing import Any

from torch import nn

from smht.models import SmhtConfig
from smht.tasks.language_modelling import LanguageModelling

WEIGHT_DECAY = 0.1
"""AdamW's, of weights with two or more axes."""


def base_learning_rate(config: SmhtConfig) -> float:
    """The peak that an architecture is expected to do best with; a search tries multiples of it."""
    return LanguageModelling().default_learning_rate(config)


def parameter_groups(model: nn.Module, learning_rate: float, weight_decay: float) -> list[dict[str, Any]]:
    """Groups of parameters for an optimizer, each with its peak learning rate."""
    weights = [weight for weight in model.parameters() if weight.requires_grad]
    return [
        {"params": [w for w in weights if w.dim() > 1], "lr": learning_rate, "weight_decay": weight_decay},
        {"params": [w for w in weights if w.dim() <= 1], "lr": learning_rate, "weight_decay": 0.0},
    ]
