"""The text in tokens, how probable each was, and what comes next."""

from collections.abc import Sequence
from typing import Any

from smht.explorer.bars import Bar, bar_table
from smht.explorer.colours import PROBABILITIES
from smht.explorer.markup import heading_cells, paragraph, table, token
from smht.explorer.reading import Reading
from smht.explorer.section import LAST, Choice, Section, kept, places, resolve
from smht.inspection.display import signed

_SHOWN_OUTCOMES = 10


class Tokens(Section):
    """Tokens with their probabilities."""

    name = "tokens"
    heading = "Tokens and probabilities"
    lead = (
        "The text as the model reads it, and what it makes of it. The bluer a token, the more probable it was, given "
        "those before it; a classifier predicts labels alone."
    )

    def choices(self, readings: Sequence[Reading], values: Sequence[Any]) -> list[Choice]:
        """After which token."""
        longest = max(readings, key=lambda reading: len(reading.ids))
        after = (("the text", LAST),) if longest.subject.labels_texts else places(longest.tokens)
        return kept([Choice("What comes after token", after, LAST)], values)

    def show(self, reading: Reading, values: Sequence[Any]) -> str:
        """A line of tokens, the loss, and the likeliest outcomes."""
        parts = [_line_of_tokens(reading)]
        if reading.loss is not None:
            parts.append(paragraph(_loss(reading)))
        if reading.edits:
            parts.append(paragraph(reading.subject.describe_edits(reading.edits, reading.statistics), "fine"))
        if reading.subject.labels_texts:
            parts.append(outcomes(reading, 0, "Labels of the text"))
        elif reading.subject.writes:
            place = resolve(values[0], len(reading.ids))
            parts.append(outcomes(reading, place, f"What comes after token {place}, “{reading.tokens[place]}”"))
            parts.append(_table_of_tokens(reading))
        return "".join(parts)


def outcomes(reading: Reading, place: int, caption: str) -> str:
    """The likeliest tokens after one, or labels, with their probabilities as bars."""
    row = reading.probabilities[place]
    best = row.topk(min(_SHOWN_OUTCOMES, len(row)))
    before = None if reading.whole is None else reading.whole.probabilities[place]
    bars = []
    for value, index in zip(best.values.tolist(), best.indices.tolist(), strict=True):
        cells = (f"{value:.2%}",) if before is None else (f"{value:.2%}", f"{float(before[index]):.2%}")
        bars.append(Bar(reading.subject.outcomes[index], value, cells))
    headings = ("outcome", "probability") if before is None else ("outcome", "probability", "unedited")
    return bar_table(caption, headings, bars)


def _loss(reading: Reading) -> str:
    count = len(reading.ids) - 1
    text = f"Loss: {reading.loss:.4f} nats a token over {count:,} token{'s' * (count != 1)}"
    if reading.whole is not None and reading.whole.loss is not None and reading.loss is not None:
        text += f"; unedited {reading.whole.loss:.4f}, a change of {signed(reading.loss - reading.whole.loss)}"
    return text + "."


def _line_of_tokens(reading: Reading) -> str:
    before = reading.given_before if reading.subject.writes else [None] * len(reading.ids)
    items = []
    for name, probability in zip(reading.tokens, before, strict=True):
        colour = PROBABILITIES.under_text(probability or 0.0)
        style = f' style="{colour}"' if colour else ""
        said = "" if probability is None else f"<small>{probability:.1%}</small>"
        items.append(f"<li{style}>{token(name)}{said}</li>")
    source = ""
    if reading.subject.has_two_stacks:
        read = "".join(f"<li>{token(name)}</li>" for name in reading.source)
        source = f'<ol class="tokens" aria-label="Tokens read">{read}</ol>'
    return f'{source}<ol class="tokens" aria-label="Tokens with probabilities">{"".join(items)}</ol>'


def _table_of_tokens(reading: Reading) -> str:
    rows = []
    for place, (index, name) in enumerate(zip(reading.ids, reading.tokens, strict=True)):
        probability = reading.given_before[place]
        rank = "" if place == 0 else f"{_rank(reading, place):,}"
        said = "" if probability is None else f"{probability:.2%}"
        rows.append(
            f'<th scope="row">{place}</th><td class="text">{token(name)}</td>'
            f"<td>{index}</td><td>{said}</td><td>{rank}</td>"
        )
    head = [heading_cells(("place", "token", "id", "probability", "rank"), ("token",))]
    return f"<details><summary>All tokens in numbers</summary>{table('Tokens in numbers', head, rows)}</details>"


def _rank(reading: Reading, place: int) -> int:
    row = reading.logits[place - 1]
    return int((row > row[reading.ids[place]]).sum()) + 1
