"""One text through one model: every step, and what follows from the last."""

from collections import OrderedDict
from dataclasses import dataclass, replace
from functools import cached_property
from threading import Lock

import torch
from torch import Tensor

from smht.explorer.head_changes import LIVE, NO_CHANGES, HeadChanges
from smht.explorer.subject import Subject
from smht.inspection import HeadLogits, Trace, head_logits, trace
from smht.inspection.head_edits import HeadEdit

_KEPT_BYTES = 400_000_000


@dataclass(frozen=True)
class Typed:
    """What models are to read, and how.

    Attributes:
        text: or token ids, for a model without a tokenizer.
        target: what has been written so far, for two stacks.
        changes: what is done to heads.
    """

    text: str
    target: str = ""
    changes: HeadChanges = NO_CHANGES


@dataclass(frozen=True)
class Reading:
    """What a model made of a text.

    Attributes:
        subject: whose.
        inputs: the model's arguments.
        trace: every step.
        edits: what was done to the model's heads; none where what was asked for is not about it.
        statistics: of its norms.
        whole: the same text through the unedited model, where there are edits.
    """

    subject: Subject
    inputs: dict[str, Tensor]
    trace: Trace
    edits: tuple[HeadEdit, ...]
    statistics: str
    whole: "Reading | None" = None

    @cached_property
    def ids(self) -> list[int]:
        """The tokens that the scores belong to: of the only stack, or of what is written."""
        return self.inputs.get("decoder_input_ids", self.inputs["input_ids"])[0].tolist()

    @cached_property
    def tokens(self) -> list[str]:
        """`ids` as a reader sees them."""
        return self.subject.labels(self.ids)

    @cached_property
    def source(self) -> list[str]:
        """The tokens of the first stack."""
        return self.subject.labels(self.inputs["input_ids"][0].tolist())

    @cached_property
    def logits(self) -> Tensor:
        """`[T, V]`, or `[1, labels]` of a classifier."""
        return self.trace.select("5")[0].value[0].reshape(-1, len(self.subject.outcomes)).float()

    @cached_property
    def probabilities(self) -> Tensor:
        """Softmax of `logits`."""
        return self.logits.softmax(-1)

    @cached_property
    def given_before(self) -> list[float | None]:
        """The probability of each token given those before it; None for the first."""
        if len(self.ids) < 2:
            return [None]
        later = torch.tensor(self.ids[1:])
        return [None, *self.probabilities[:-1].gather(1, later[:, None])[:, 0].tolist()]

    @cached_property
    def loss(self) -> float | None:
        """Mean cross-entropy of all tokens but the first, in nats; None where there is none to predict."""
        if not self.subject.writes or len(self.ids) < 2:
            return None
        later = torch.tensor(self.ids[1:])
        return float(torch.nn.functional.cross_entropy(self.logits[:-1].double(), later))

    def contributions(self, outcomes: list[int]) -> HeadLogits:
        """What each chunk adds to the scores of these tokens or labels."""
        with self.subject.edited(self.edits, self.statistics, self.inputs):
            return head_logits(self.subject.model, torch.tensor(outcomes), **self.inputs)


class Reader:
    """Reads texts, and remembers the last ones, so that looking at another step costs no second pass."""

    def __init__(self) -> None:
        self._kept: OrderedDict[tuple[object, ...], Reading] = OrderedDict()
        self._lock = Lock()

    def read(self, subject: Subject, typed: Typed) -> Reading:
        """A text through a model.

        Raises:
            UsageError: see `Subject.inputs`, `HeadChanges.edits` and `Subject.edited`.
        """
        inputs = subject.inputs(typed.text, typed.target)
        edits = typed.changes.edits(subject.heads)
        statistics = typed.changes.statistics if edits else LIVE
        whole = self.read(subject, replace(typed, changes=NO_CHANGES)) if edits else None
        ids = (tuple(each[0].tolist()) for each in inputs.values())
        key = (id(subject), edits, statistics, *ids)
        with self._lock:
            if key in self._kept:
                self._kept.move_to_end(key)
                return self._kept[key]
        with subject.edited(edits, statistics, inputs):
            reading = Reading(subject, inputs, trace(subject.model, **inputs), edits, statistics, whole)
        with self._lock:
            self._kept[key] = reading
            while len(self._kept) > 1 and sum(map(_size, self._kept.values())) > _KEPT_BYTES:
                self._kept.popitem(last=False)
        return reading


def _size(reading: Reading) -> int:
    return sum(step.value.nbytes for step in reading.trace.steps)
