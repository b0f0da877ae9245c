"""Sizes for each variant that meet one budget: width, feed-forward width and, where asked for, the number of blocks."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from smht.comparison.budget import Limit
from smht.comparison.fits import Family, cost_of, hidden_unit, ratio_of, width_unit
from smht.comparison.variants import Variant
from smht.errors import UsageError
from smht.models import SmhtConfig
from smht.tasks.corpus import counted

DEPTHS = range(2, 17)
"""Numbers of blocks to choose from, where that is asked for."""

_FARTHEST = 0.1


@dataclass(frozen=True)
class Solved:
    """A variant with its sizes.

    Attributes:
        variant: which.
        config: its architecture.
        cost: what it has of the budget's kind.
        off: by which part of the budget it misses the budget; negative below it.
    """

    variant: Variant
    config: SmhtConfig
    cost: int
    off: float


def solve(variant: Variant, base: SmhtConfig, budget: Limit, solve_depth: bool = False) -> Solved:
    """Sizes with which the variant meets the budget (`Fit.rank` says which of several).

    Args:
        variant: what to size.
        base: the architecture that the variant changes; its `F / D` is aimed at, and with `solve_depth` its `D / N`.
        budget: for the size.
        solve_depth: whether to choose the number of blocks too.

    Raises:
        UsageError: no sizes come within a tenth of the budget (the nearest are named), the variant cannot have the
            budget's width, or it makes no model.
    """
    config = change(base, variant)
    if budget.kind == "width":
        return _of_width(variant, config, round(budget.amount))
    if cost_of(config, budget.kind) == budget.amount:
        return Solved(variant, config, round(budget.amount), 0.0)
    depths = DEPTHS if solve_depth else [None]
    best = min((Family(config, budget, depth).best() for depth in depths), key=lambda fit: fit.rank)
    if best.error > _FARTHEST:
        raise UsageError(
            f"no width gives {variant.name} {budget}: the nearest is {best.cost:,} "
            f"(width {best.width}, feed-forward {best.hidden}, {counted(best.depth, 'block')})"
        )
    sized = _make(variant, config.to_diff_dict(), best.width, best.hidden, best.depth)
    return Solved(variant, sized, best.cost, best.cost / budget.amount - 1)


def change(base: SmhtConfig, variant: Variant) -> SmhtConfig:
    """The base architecture with the variant's changes; its sizes are rounded to what the variant's heads divide.

    Raises:
        UsageError: the variant makes no model.
    """
    fields = {**base.to_diff_dict(), **variant.changes}
    unit = width_unit(fields["num_attention_heads"], fields["position_embedding"])
    width = max(1, round(base.hidden_size / unit)) * unit
    return _make(variant, fields, width, _proportional(fields, width, ratio_of(base)))


def _of_width(variant: Variant, config: SmhtConfig, width: int) -> Solved:
    heads = config.num_attention_heads
    unit = width_unit(heads, config.position_embedding)
    if width % unit:
        below = width // unit * unit
        nearest = f"nearest are {below} and {below + unit}" if below else f"nearest is {unit}"
        why = f"{heads} heads and rotary positions" if unit > heads else f"{heads} heads"
        raise UsageError(
            f"{variant.name} cannot have width={width}: with {why} it is a multiple of {unit}; the {nearest}"
        )
    fields = config.to_diff_dict()
    return Solved(variant, _make(variant, fields, width, _proportional(fields, width, ratio_of(config))), width, 0.0)


def _proportional(fields: Mapping[str, Any], width: int, ratio: float) -> int:
    """The feed-forward width nearest to `ratio` times the width."""
    unit = hidden_unit(fields["split"], fields["num_attention_heads"])
    return max(1, round(ratio * width / unit)) * unit


def _make(variant: Variant, fields: Mapping[str, Any], width: int, hidden: int, depth: int | None = None) -> SmhtConfig:
    sizes = {
        "hidden_size": width,
        "intermediate_size": hidden,
        "num_hidden_layers": depth or fields["num_hidden_layers"],
    }
    try:
        return SmhtConfig(**{**fields, **sizes})
    except UsageError as error:
        raise UsageError(f"variant {variant.name}: {error}") from None
