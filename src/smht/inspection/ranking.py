"""Every head dropped alone: which a model would miss most."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from smht.inspection.ablation import describe, heads_with_logits
from smht.inspection.display import Displayed, Table, signed
from smht.inspection.head_edits import Drop
from smht.inspection.many_texts import Batches, score_over
from smht.models import SmhtPreTrainedModel


@dataclass(frozen=True)
class HeadEffect:
    """What dropping one head does.

    Attributes:
        stack: empty, or `encoder` or `decoder` where there are two.
        layer: the head's block.
        head: its number.
        loss: without it, in nats a target.
        change: that minus the loss of the whole model.
        accuracy: without it, for which part of the targets nothing is likelier.
    """

    stack: str
    layer: int
    head: int
    loss: float
    change: float
    accuracy: float


@dataclass(frozen=True, repr=False)
class HeadRanking(Displayed):
    """Every head dropped alone.

    Attributes:
        effects: the heads, the one that is missed most first.
        loss: of the whole model, in nats a target.
        accuracy: of the whole model.
        statistics: `live` or `held`.
        parts: what was dropped of each head, in words.
        targets: how many tokens or labels the losses are means over.
    """

    effects: tuple[HeadEffect, ...]
    loss: float
    accuracy: float
    statistics: str
    parts: str
    targets: int

    def tables(self) -> list[Table]:
        """A row a head."""
        has_stacks = any(effect.stack for effect in self.effects)
        headers = ("stack",) * has_stacks + ("layer", "head", "loss without it", "change", "right without it")
        rows = [
            (effect.stack,) * has_stacks
            + (str(effect.layer), str(effect.head))
            + (f"{effect.loss:.4f}", signed(effect.change), f"{effect.accuracy:.2%}")
            for effect in self.effects
        ]
        caption = (
            f"whole model: loss {self.loss:.4f} nats, mean of {self.targets:,}, {self.accuracy:.2%} right; "
            "each head dropped alone"
        )
        words = (0,) if has_stacks else ()
        return [Table(headers, tuple(rows), caption, describe(self.statistics, self.parts), words)]


def rank_heads(
    model: SmhtPreTrainedModel,
    statistics: str = "live",
    *,
    parts: tuple[str, ...] | None = None,
    track: Callable[[Sequence[Drop]], Iterable[Drop]] = iter,
    **inputs: Any,
) -> HeadRanking:
    """Drop every head of every block by itself and rank them by how much the loss on one batch grows.

    Takes a run a head, two with held statistics.

    Args:
        model: as in `ablate`.
        statistics: `live` or `held`, see `edited_heads`.
        parts: of each head what to drop; all that it has if not given. Heads without any of them are left out.
        track: passes the edits on as they are tried, such as `rich.progress.track`, which draws a bar.
        **inputs: as in `ablate`.

    Raises:
        UsageError: what `ablate` refuses, or inputs with nothing to predict.
    """
    return rank_heads_over(model, [inputs], statistics, parts=parts, track=track)


@torch.no_grad()
def rank_heads_over(
    model: SmhtPreTrainedModel,
    batches: Batches,
    statistics: str = "live",
    *,
    parts: tuple[str, ...] | None = None,
    track: Callable[[Sequence[Drop]], Iterable[Drop]] = iter,
) -> HeadRanking:
    """The same over many texts: losses are means over the targets of all of them.

    Args:
        model: as in `rank_heads`, like all arguments not named here.
        batches: see `ablate_over`.
        statistics: see there.
        parts: see there.
        track: see there.

    Raises:
        UsageError: see there.
    """
    heads = heads_with_logits(model)
    whole = score_over(model, (), batches)
    effects = []
    for drop in track(heads.every_head(parts)):
        without = score_over(model, (drop,), batches, statistics)
        change = without.loss - whole.loss
        effects.append(HeadEffect(drop.stack, drop.layer, drop.head, without.loss, change, without.accuracy))
    effects.sort(key=lambda effect: -effect.change)
    described = heads.describe_parts(parts)
    return HeadRanking(tuple(effects), whole.loss, whole.accuracy, statistics, described, whole.targets)
