"""What the page shows for what was typed and chosen. Knows nothing of browsers."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from smht.errors import UsageError
from smht.explorer.markup import words
from smht.explorer.reading import Reader, Reading, Typed
from smht.explorer.section import Choice, Section
from smht.explorer.sections import SECTIONS
from smht.explorer.subject import Subject
from smht.inspection import Drop, DropLineage, Freeze, Swap


@dataclass(frozen=True)
class Part:
    """A section as it is to be shown.

    Attributes:
        choices: what can be chosen; empty where there is nothing to show.
        html: its figures.
    """

    choices: tuple[Choice, ...] = ()
    html: str = ""


@dataclass(frozen=True)
class View:
    """The page's contents.

    Attributes:
        status: what to say above all figures, as HTML.
        parts: by section, in the page's order.
    """

    status: str
    parts: tuple[Part, ...]


class Viewer:
    """Models side by side, and what they make of texts.

    Args:
        subjects: one or more.

    Raises:
        UsageError: two models that do not take the same kind of text.
    """

    def __init__(self, subjects: Sequence[Subject]) -> None:
        self.subjects = tuple(subjects)
        self._reader = Reader()
        for other in self.subjects[1:]:
            _check_pair(self.subjects[0], other)

    @property
    def first_text(self) -> str:
        """What to open with: the first model's own, as much of it as all can read.

        Raises:
            UsageError: not even one letter.
        """
        text = self.subjects[0].first_text
        while True:
            try:
                for subject in self.subjects:
                    subject.inputs(text)
            except UsageError:
                if len(text) <= 1:
                    raise
                text = text[:-1]
            else:
                return text

    def view(self, typed: Typed, values: Sequence[Sequence[Any]] = ()) -> View:
        """All sections.

        Args:
            typed: what to read.
            values: what is chosen in each section; nothing for their own first choices.
        """
        given = values or [()] * len(SECTIONS)
        try:
            readings = self.read(typed)
        except UsageError as error:
            return View(_message(str(error), "refusal"), tuple(Part() for _ in SECTIONS))
        parts = tuple(self._part(section, readings, own) for section, own in zip(SECTIONS, given, strict=True))
        return View(self._status(typed, readings), parts)

    def part(self, section: Section, typed: Typed, values: Sequence[Any]) -> tuple[str, Part]:
        """The status and one section."""
        try:
            readings = self.read(typed)
        except UsageError as error:
            return _message(str(error), "refusal"), Part()
        return self._status(typed, readings), self._part(section, readings, values)

    def read(self, typed: Typed) -> list[Reading]:
        """The text through every model.

        Raises:
            UsageError: a model cannot read it; the message says why.
        """
        return [self._reader.read(subject, typed) for subject in self.subjects]

    def _part(self, section: Section, readings: list[Reading], values: Sequence[Any]) -> Part:
        choices = section.choices(readings, values)
        chosen = [choice.value for choice in choices]
        return Part(tuple(choices), side_by_side([(r.subject, _shown(section, r, chosen)) for r in readings]))

    def _status(self, typed: Typed, readings: list[Reading]) -> str:
        counts = [f"{len(r.ids):,} of at most {r.subject.context:,} tokens" for r in readings]
        edits = [_counts(r) for r in readings if r.edits]
        said = [_message("; ".join(dict.fromkeys([*counts, *edits])), "fine")]
        notices = [notice for subject in self.subjects if (notice := subject.notice())]
        if typed.changes.waiting:
            notices.append(f"{typed.changes.waiting} is to change places: choose the head to swap it with")
        return "".join([*said, *(_message(notice, "notice") for notice in notices)])


def _counts(reading: Reading) -> str:
    """How many heads are edited: `1 head off, 2 frozen, 1 pair swapped, LayerNorm's statistics live`."""
    kinds = [type(edit) for edit in reading.edits]
    off, frozen, swapped = kinds.count(Drop) + kinds.count(DropLineage), kinds.count(Freeze), kinds.count(Swap)
    said = [f"{off} off"] * bool(off) + [f"{frozen} frozen"] * bool(frozen) + [f"{swapped} swapped"] * bool(swapped)
    return f"heads: {', '.join(said)}, LayerNorm's statistics {reading.statistics}"


def _check_pair(one: Subject, other: Subject) -> None:
    for what, of in (
        ("a tokenizer", lambda s: s.tokenizer is not None),
        ("a second stack", lambda s: s.has_two_stacks),
    ):
        if of(one) != of(other):
            having, lacking = (one, other) if of(one) else (other, one)
            raise UsageError(f"{having.name} has {what} and {lacking.name} has none: they cannot share a page")


def side_by_side(panels: Sequence[tuple[Subject, str]]) -> str:
    """Each model's figures under its name; the name is left out where there is one model."""
    if len(panels) == 1:
        return f'<div class="smht">{panels[0][1]}</div>'
    articles = "".join(
        f'<article aria-label="{words(subject.name)}"><h3>{words(subject.name)}</h3>{html}</article>'
        for subject, html in panels
    )
    return f'<div class="smht panels">{articles}</div>'


def _shown(section: Section, reading: Reading, values: Sequence[Any]) -> str:
    try:
        return section.show(reading, values)
    except UsageError as error:
        return _message(str(error), "refusal")


def _message(text: str, kind: str) -> str:
    return f'<p class="{kind}">{words(text[:1].upper() + text[1:])}.</p>'
