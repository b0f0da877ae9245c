"""What edited heads do to a model over many texts: loss, and how often the right outcome is the likeliest."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from smht.errors import UsageError
from smht.inspection.ablation import describe, heads_with_logits, logits_of, losses_of, split_labels
from smht.inspection.display import Displayed, Table, signed
from smht.inspection.head_edits import HeadEdit
from smht.inspection.recording import evaluating
from smht.models import SmhtPreTrainedModel
from smht.models.labels import IGNORED

Batches = Sequence[Mapping[str, Any]]
"""What the model's forward takes, text after text or batch after batch; gone through several times."""


@dataclass(frozen=True)
class Score:
    """How well a model does on texts.

    Attributes:
        loss: mean cross-entropy, in nats a target.
        accuracy: for which part of the targets nothing is likelier.
        targets: how many tokens or labels these are means over.
    """

    loss: float
    accuracy: float
    targets: int


@dataclass(frozen=True, repr=False)
class TextsAblation(Displayed):
    """A model with edited heads beside the unedited one, on the same texts.

    Attributes:
        descriptions: what was done to the heads, in words.
        parts: what was edited of each head where an edit names no parts, in words.
        statistics: of the norms: `live` or `held`.
        before: of the unedited model.
        after: of the edited one.
    """

    descriptions: tuple[str, ...]
    parts: str
    statistics: str
    before: Score
    after: Score

    @property
    def loss_change(self) -> float:
        """Above 0 where the heads helped."""
        return self.after.loss - self.before.loss

    def tables(self) -> list[Table]:
        """Loss and accuracy before and after."""
        before, after = self.before, self.after
        rows = (
            ("nats", f"{before.loss:.4f}", f"{after.loss:.4f}", signed(self.loss_change)),
            ("right", f"{before.accuracy:.2%}", f"{after.accuracy:.2%}", f"{after.accuracy - before.accuracy:+.2%}"),
        )
        heading = f"mean of {before.targets:,}"
        caption = "; ".join(self.descriptions) or "no edits"
        note = describe(self.statistics, self.parts)
        return [Table((heading, "before", "after", "change"), rows, caption, note)]


@torch.no_grad()
def ablate_over(
    model: SmhtPreTrainedModel,
    edits: Sequence[HeadEdit],
    batches: Batches,
    statistics: str = "live",
    *,
    track: Callable[[Batches], Iterable[Mapping[str, Any]]] = iter,
) -> TextsAblation:
    """Run `model` without and with `edits` on many texts.

    Args:
        model: as in `smht.inspection.ablate`.
        edits: see `edited_heads`. `Freeze` holds what a head writes in the unedited run of the same batch.
        batches: with targets as there.
        statistics: `live` or `held`, see `edited_heads`.
        track: passes the batches on as the edited model reads them, see `rank_heads`.

    Raises:
        UsageError: what `ablate` refuses, or nothing to predict.
    """
    heads = heads_with_logits(model)
    heads.check(edits)
    before = score_over(model, (), batches)
    after = score_over(model, edits, batches, statistics, track=track)
    descriptions = tuple(heads.describe(edit) for edit in edits)
    return TextsAblation(descriptions, heads.describe_parts(), statistics, before, after)


@torch.no_grad()
def score_over(
    model: SmhtPreTrainedModel,
    edits: Sequence[HeadEdit],
    batches: Batches,
    statistics: str = "live",
    *,
    track: Callable[[Batches], Iterable[Mapping[str, Any]]] = iter,
) -> Score:
    """Loss and accuracy of a model with edited heads; arguments as in `ablate_over`.

    Raises:
        UsageError: see there.
    """
    nats, right, targets = 0.0, 0, 0
    with evaluating(model):
        for inputs in track(batches):
            given, wanted = split_labels(model, inputs)
            if wanted is None or not (counted := int((wanted != IGNORED).sum())):
                continue
            logits = logits_of(model, edits, statistics, given, given)
            nats += float(losses_of(logits, wanted).double().sum())
            right += int(((logits.argmax(-1) == wanted) & (wanted != IGNORED)).sum())
            targets += counted
    if not targets:
        raise UsageError("heads are judged by their loss, and there is nothing to predict: give more tokens, or labels")
    return Score(nats / targets, right / targets, targets)
