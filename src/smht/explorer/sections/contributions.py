"""What each head's chunk adds to a token's score (seed 000, 6.2)."""

from collections.abc import Sequence
from typing import Any

from smht.errors import UsageError
from smht.explorer.bars import Bar, bar_table
from smht.explorer.heat_maps import number
from smht.explorer.markup import paragraph
from smht.explorer.reading import Reading
from smht.explorer.section import LAST, Choice, Section, kept, places, resolve

_OFFERED = 30
_NOTHING = ""
_LIKELIEST = "\n"
"""No outcome is called so: names have no line ends."""


class Contributions(Section):
    """A score as the sum of what the chunks say."""

    name = "contributions"
    heading = "Contributions of the chunks"
    lead = (
        "The score (logit) of an outcome is the sum of one number a chunk. Against another: which chunk prefers which."
    )

    def choices(self, readings: Sequence[Reading], values: Sequence[Any]) -> list[Choice]:
        """After which token, for which outcome, against which."""
        longest = max(readings, key=lambda reading: len(reading.logits))
        after = (("the text", LAST),) if longest.subject.labels_texts else places(longest.tokens)
        place = values[0] if values and values[0] in [number for _, number in after] else LAST
        offered = [name for reading in readings for name in _likeliest(reading, place)]
        chosen = [value for value in values[1:] if value in readings[0].subject.outcome_numbers]
        names = tuple((name, name) for name in dict.fromkeys([*offered, *chosen]))
        return kept(
            [
                Choice("After token", after, LAST),
                Choice("Outcome", (("the likeliest", _LIKELIEST), *names), _LIKELIEST),
                Choice("Against", (("nothing", _NOTHING), *names), _NOTHING),
            ],
            values,
        )

    def show(self, reading: Reading, values: Sequence[Any]) -> str:
        """A bar a head, and their sum."""
        place, outcome, against = values
        outcome = _likeliest(reading, place)[0] if outcome == _LIKELIEST else outcome
        numbers = [_number(reading, name) for name in (outcome, against) if name != _NOTHING]
        split = reading.contributions(numbers)
        heads = split.contributions.shape[-2]
        place = resolve(place, len(reading.logits))
        parts = split.contributions.reshape(-1, heads, len(numbers))[place]
        sums = split.logits.reshape(-1, len(numbers))[place]
        if len(numbers) == 2:
            parts, sums = parts[:, :1] - parts[:, 1:], sums[:1] - sums[1:]
        what = f"Score of “{outcome}”" + (f" less that of “{against}”" if len(numbers) == 2 else "")
        bars = [Bar(f"chunk {chunk}", value, (number(value),)) for chunk, value in enumerate(parts[:, 0].tolist())]
        bars.append(Bar("sum", 0.0, (number(float(sums[0])),), is_total=True))
        return bar_table(what, ("chunk", "adds"), bars) + paragraph(f"{split.note[:1].upper()}{split.note[1:]}.")


def _likeliest(reading: Reading, place: int) -> list[str]:
    row = reading.logits[resolve(place, len(reading.logits))]
    return [reading.subject.outcomes[index] for index in row.topk(min(_OFFERED, len(row))).indices.tolist()]


def _number(reading: Reading, name: str) -> int:
    numbers = reading.subject.outcome_numbers
    if name not in numbers:
        raise UsageError(f"{reading.subject.name} has no {name!r} among its outcomes")
    return numbers[name]
