"""A split model beside its dense twin, part by part (seed 000, section 5)."""

from dataclasses import asdict, dataclass
from typing import Any

import torch

from smht.inspection.accounting import Accounting, Costs, account, costs_to_dict
from smht.inspection.display import Displayed, Table
from smht.models import SmhtConfig, dense_twin

MATRIX_TILE = 16
"""Matrix units multiply tiles whose sides are multiples of this (seed 002)."""


@dataclass(frozen=True, repr=False)
class Comparison(Displayed):
    """A model's costs beside those of its dense twin.

    Attributes:
        model: the model's.
        dense: the twin's, with the same parts.
        is_split: whether any projection of the model is split; if not, model and twin are the same.
        notes: what to know when reading the numbers, each a sentence without a full stop.
    """

    model: Accounting
    dense: Accounting
    is_split: bool
    notes: tuple[str, ...]

    def tables(self) -> list[Table]:
        """A row a part, for parameters and for multiply-adds."""
        found = self.to_dict()
        parts = [*found["parts"], {"name": "total", **found["total"]}]
        return [
            Table(
                ("part", "dense", "this model", "ratio"),
                tuple(_cells(part, measure) for part in parts if part["dense"][measure] or part["model"][measure]),
                caption,
                note,
            )
            for measure, caption, note in (
                ("parameters", "parameters", ""),
                ("multiply_adds", f"multiply-adds a token, over {self.model.context:,} tokens", "; ".join(self.notes)),
            )
        ]

    def to_dict(self) -> dict[str, Any]:
        """Plain data for JSON; a ratio is the model's cost over the twin's, None where the twin has none."""
        model = self.model.to_dict()
        return {
            **{key: model[key] for key in ("context", "cache_dtype")},
            "is_split": self.is_split,
            "parts": [
                {"name": part.name, "layers": part.layers, **self._side_by_side(part.costs, twin.costs)}
                for part, twin in zip(self.model.parts, self.dense.parts, strict=True)
            ],
            "total": self._side_by_side(self.model.total, self.dense.total),
            "causal_attention_multiply_adds": self.model.causal_attention,
            "notes": list(self.notes),
        }

    def _side_by_side(self, model: Costs, dense: Costs) -> dict[str, Any]:
        twins = asdict(dense)
        return {
            "model": costs_to_dict(model, self.model.dtype),
            "dense": costs_to_dict(dense, self.dense.dtype),
            "ratio": {name: cost / twins[name] if twins[name] else None for name, cost in asdict(model).items()},
        }


def compare(config: SmhtConfig, context: int | None = None, dtype: torch.dtype | None = None) -> Comparison:
    """What `config`'s model costs, and what its dense twin does.

    Args:
        config: any configuration.
        context: as in `account`.
        dtype: as in `account`.

    Raises:
        UsageError: what `account` refuses.
    """
    return Comparison(
        model=account(config, context, dtype),
        dense=account(dense_twin(config), context, dtype),
        is_split=bool(config.split),
        notes=tuple(_notes(config)),
    )


def _cells(part: dict[str, Any], measure: str) -> tuple[str, ...]:
    ratio = part["ratio"][measure]
    numbers = (f"{part[side][measure]:,}" for side in ("dense", "model"))
    return (part["name"], *numbers, "" if ratio is None else f"{ratio:.1%}")


def _notes(config: SmhtConfig) -> list[str]:
    notes = []
    if not config.split:
        notes.append("no projection is split, so there is nothing to compare: this is the dense model")
    elif config.num_attention_heads == 1:
        notes.append("with one head a split projection is a full matrix: both models are the same")
    if config.head_dim % MATRIX_TILE:
        notes.append(_tile_note(config))
    return notes


def _tile_note(config: SmhtConfig) -> str:
    heads, head_width = config.num_attention_heads, config.head_dim
    below = head_width // MATRIX_TILE * MATRIX_TILE
    nearest = [f"{width} (hidden_size = {width * heads:,})" for width in (below, below + MATRIX_TILE) if width]
    return (
        f"the head width, {config.hidden_size:,} / {heads} = {head_width}, is no multiple of {MATRIX_TILE}, "
        f"the tile of a GPU's matrix units; nearest: {' or '.join(nearest)}"
    )
