"""What `smht ablate` prints: losses, probabilities of labels, accuracies, as tables and as JSON."""

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any


def tables_of_text(together: Any, alone: Sequence[Any], labels: Sequence[str] | None) -> list[Any]:
    """A line an edit, and one for all of them; of a classifier its labels too.

    Args:
        together: the result of all edits.
        alone: of each.
        labels: of a classifier.
    """
    found = [] if labels is None else [together.label_table(labels)]
    if together.loss_change is None:
        caption = "; ".join(together.descriptions)
        return [_described(found[0], caption, together)]
    rows = [
        (name, f"{one.loss_before:.4f}", f"{one.loss_after:.4f}", _signed(one.loss_change))
        for name, one in _named(together, alone)
    ]
    return [_table((f"nats, mean of {together.count:,}", "before", "after", "change"), rows, together), *found]


def table_of_texts(together: Any, alone: Sequence[Any]) -> Any:
    """Loss and accuracy over many texts: a line an edit, and one for all of them."""
    rows = []
    for name, one in _named(together, alone):
        losses = (f"{one.before.loss:.4f}", f"{one.after.loss:.4f}", _signed(one.loss_change))
        rows.append((name, *losses, f"{one.before.accuracy:.2%}", f"{one.after.accuracy:.2%}"))
    headers = (f"nats, mean of {together.before.targets:,}", "before", "after", "change", "right before", "right after")
    return _table(headers, rows, together)


def json_of_text(
    together: Any, alone: Sequence[Any], names: Sequence[str], labels: Sequence[str] | None
) -> dict[str, Any]:
    """The same for programs, with the loss of each token; arguments as in `tables_of_text`.

    Args:
        together: see there.
        alone: see there.
        names: of the tokens that are predicted.
        labels: see there.
    """
    found: dict[str, Any] = {
        "statistics": together.statistics,
        "parts": together.parts,
        "targets": together.count,
        **_losses(together),
        "edits": [{"edit": one.descriptions[0], **_losses(one)} for one in alone],
    }
    if labels is not None:
        return {**found, "labels": _labels(together, labels)}
    losses = (together.losses_before[0].tolist(), together.losses_after[0].tolist())
    found["tokens"] = [
        {"token": name, "loss_before": before, "loss_after": after}
        for name, before, after in zip(names, *losses, strict=False)
    ]
    return found


def json_of_texts(together: Any, alone: Sequence[Any], texts: int) -> dict[str, Any]:
    """The same over many texts, of which there are so many."""

    def scores(one: Any) -> dict[str, Any]:
        return {"before": asdict(one.before), "after": asdict(one.after), "change": one.loss_change}

    return {
        "statistics": together.statistics,
        "parts": together.parts,
        "texts": texts,
        **scores(together),
        "edits": [{"edit": one.descriptions[0], **scores(one)} for one in alone],
    }


def _labels(together: Any, names: Sequence[str]) -> list[dict[str, Any]]:
    from smht.inspection.ablation import probabilities

    both = (probabilities(logits[0]).tolist() for logits in (together.logits_before, together.logits_after))
    return [
        {"label": name, "probability_before": before, "probability_after": after}
        for name, before, after in zip(names, *both, strict=True)
    ]


def _named(together: Any, alone: Sequence[Any]) -> list[tuple[str, Any]]:
    named = [(result.descriptions[0], result) for result in alone]
    return [*named, ("all together", together)] if len(alone) > 1 else named


def _table(headers: tuple[str, ...], rows: Sequence[tuple[str, ...]], together: Any) -> Any:
    from smht.inspection.ablation import describe
    from smht.inspection.display import Table

    return Table(headers, tuple(rows), note=describe(together.statistics, together.parts))


def _described(table: Any, caption: str, together: Any) -> Any:
    from dataclasses import replace

    from smht.inspection.ablation import describe

    return replace(table, caption=caption, note=describe(together.statistics, together.parts))


def _signed(value: float) -> str:
    from smht.inspection.display import signed

    return signed(value)


def _losses(result: Any) -> dict[str, float | None]:
    return {"loss_before": result.loss_before, "loss_after": result.loss_after, "change": result.loss_change}
