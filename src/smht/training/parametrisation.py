"""How large the weights of a model begin, and how fast which of them learn.

`standard`: as the model was made, all weights at one rate. `mup`: the Maximal Update parametrisation, with which each
activation, and each step's change of it, is about as large in a wide model as in a narrow one, so that a rate found on
a narrow one serves wide ones (Yang et al. 2022, "Tensor Programs V", arXiv:2203.03466, table 8). What counts is how
many inputs an output sums over: for a block-diagonal matrix those of a block (Qiu et al. 2024, "Compute Better
Spent", arXiv:2406.06248, section 3), so that a rate serves other numbers of heads, too.

All is relative to a split model of width `BASE_WIDTH` with `BASE_HEADS` heads and a feed-forward four times as wide: it
begins and learns as under `standard`. `r` is that model's fan-in over the fan-in, and its width over `D` for what is no
projection of a block.

| weights | standard deviation | rate of Adam |
|---|---|---|
| projections | as `standard`: ~ 1/√fan_in | r |
| embeddings | times √(1/r), so that it is the same at every width | 1 |
| a head of its own | times √r, so that it is ~ 1/D | r |
| a head that is the token embedding | as embeddings; the norm before it begins at r instead of 1 | r for that norm |
| norms and biases | as `standard` | 1 |

A tied head would need its logits multiplied by r; the gain and bias of the norm before it do that, and Adam's steps of
them times r are those of a multiplier. So the model computes what it always does, and whoever loads it need not know
how it was trained. Where token embeddings are multiplied by √D (sinusoidal positions), the factors allow for it.

Weight decay is AdamW's, a rate times a decay; the decay is divided by r, so that a step takes the same part of each
weight.
"""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from smht.errors import UsageError
from smht.layers import FeedForward, SplitLinear, fan_in_of
from smht.models import SmhtConfig, SmhtPreTrainedModel
from smht.tasks.task import Task

STANDARD, MUP = "standard", "mup"
PARAMETRISATIONS = (STANDARD, MUP)
BASE_WIDTH, BASE_HEADS = 128, 4
"""The model for which `mup` is `standard`, and takes the rate that is given for all weights."""
_BASE_FAN_IN = BASE_WIDTH // BASE_HEADS
_BASE_FEED_FORWARD = 4 * _BASE_FAN_IN
MUP_LEARNING_RATE = 8e-3
"""What did best with `mup`, whatever the width and the number of heads (docs/log.md)."""


@dataclass(frozen=True)
class Scale:
    """How a weight differs from what `standard` makes of it.

    Attributes:
        initial: factor of its first value.
        rate: factor of the learning rate.
    """

    initial: float = 1.0
    rate: float = 1.0


def check_parametrisation(name: str, config: SmhtConfig) -> None:
    """Refuse one that the architecture leaves no room for.

    Raises:
        UsageError: it is to choose deviations, and the configuration has fixed one.
    """
    if name == MUP and config.initializer_range is not None:
        raise UsageError(
            f"initializer_range = {config.initializer_range} gives all weights one deviation, and parametrisation = "
            "'mup' one to each by its fan-in: leave one of them out"
        )


def default_learning_rate(task: Task, config: SmhtConfig, parametrisation: str) -> float:
    """The peak where nobody gives one: the task's own, or with `mup` one for every architecture."""
    return MUP_LEARNING_RATE if parametrisation == MUP else task.default_learning_rate(config)


def scales(model: SmhtPreTrainedModel) -> dict[Tensor, Scale]:
    """What `mup` makes of each weight of a model with a head; weights that are not among them stay as they are."""
    ratio = BASE_WIDTH / model.config.hidden_size
    tokens: Any = model.get_input_embeddings()
    stack: Any = model.base_model
    readout = model.readout
    readers_of_hidden = {module.down_proj for module in model.modules() if isinstance(module, FeedForward)}
    found: dict[Tensor, Scale] = {}
    for module in model.modules():
        if isinstance(module, SplitLinear | nn.Linear):
            base = _BASE_FEED_FORWARD if module in readers_of_hidden else _BASE_FAN_IN
            found[module.weight] = Scale(rate=base / fan_in_of(module))
        elif isinstance(module, nn.Embedding):
            found[module.weight] = Scale(initial=ratio**-0.5)
    # What the blocks read is the embedding times its multiplier, here as a part of the base model's.
    multiplier = stack.embedding_scale if stack.embedding_scale == 1 else ratio**-0.5
    found[tokens.weight] = Scale(initial=ratio**-0.5 / multiplier, rate=1 / multiplier)
    if readout.weight is tokens.weight:
        for weight in stack.last_norm.parameters():
            found[weight] = Scale(initial=ratio * multiplier, rate=ratio * multiplier)
    else:
        found[readout.weight] = Scale(initial=ratio**0.5, rate=ratio)
    return found


@torch.no_grad()
def initialise(model: SmhtPreTrainedModel, parametrisation: str) -> None:
    """Give a fresh model the first weights of a parametrisation, in place: those that it has, each times a factor.

    Raises:
        UsageError: see `check_parametrisation`.
    """
    check_parametrisation(parametrisation, model.config)
    if parametrisation == MUP:
        for weight, scale in scales(model).items():
            weight.mul_(scale.initial)


def parameter_groups(
    model: nn.Module, learning_rate: float, weight_decay: float, parametrisation: str = STANDARD
) -> list[dict[str, Any]]:
    """Groups of parameters for AdamW, each with its peak learning rate; that of the first is the one given.

    Args:
        model: what to train; `mup` is for models of this package with a head.
        learning_rate: at its peak.
        weight_decay: of weights with two or more axes, at that rate.
        parametrisation: one of `PARAMETRISATIONS`.

    Raises:
        UsageError: `mup` for another model.
    """
    found: dict[Tensor, Scale] = {}
    if parametrisation == MUP:
        if not isinstance(model, SmhtPreTrainedModel):
            raise UsageError(f"parametrisation = 'mup' is for models of smht, not for {type(model).__name__}")
        found = scales(model)
    members: dict[tuple[float, bool], list[nn.Parameter]] = {}
    for weight in model.parameters():
        if weight.requires_grad:
            members.setdefault((found.get(weight, Scale()).rate, weight.dim() > 1), []).append(weight)
    return [
        {"params": weights, "lr": rate * learning_rate, "weight_decay": weight_decay / rate if decays else 0.0}
        for (rate, decays), weights in sorted(members.items(), key=lambda group: group[0][0] != 1)
    ]
