"""What a part of the page is: it draws a reading, and says what about it can be chosen."""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from smht.explorer.reading import Reading

LAST = -1
"""The last place of a text, wherever that is."""


@dataclass(frozen=True)
class Choice:
    """One of several, to be chosen on the page.

    Attributes:
        label: what is chosen.
        options: what a reader sees, and the value that it stands for.
        value: the one chosen.
        walks: whether to step through them one by one makes sense.
    """

    label: str
    options: tuple[tuple[str, Any], ...]
    value: Any
    walks: bool = False

    def keep(self, value: Any) -> "Choice":
        """With this value chosen, where it is among the options."""
        values = [option for _, option in self.options]
        return Choice(self.label, self.options, value if value in values else self.value, self.walks)

    def neighbour(self, value: Any, by: int) -> Any:
        """The value some places further on; the last and the first have none beyond."""
        values = [option for _, option in self.options]
        place = values.index(value) if value in values else 0
        return values[min(max(place + by, 0), len(values) - 1)]


class Section(ABC):
    """A part of the page.

    Attributes:
        name: for addresses within the page.
        heading: above it.
        lead: what can be seen there, in a sentence or two.
    """

    name: ClassVar[str]
    heading: ClassVar[str]
    lead: ClassVar[str]

    @abstractmethod
    def choices(self, readings: Sequence[Reading], values: Sequence[Any]) -> list[Choice]:
        """What can be chosen: always as many, in the same order.

        Args:
            readings: the models side by side, at least one.
            values: what is chosen now, in that order; empty at first.
        """

    @abstractmethod
    def show(self, reading: Reading, values: Sequence[Any]) -> str:
        """One model's part, as HTML.

        Raises:
            UsageError: the model has not what was chosen; the message says what there is.
        """

    def show_all(self, readings: Sequence[Reading], reading: Reading) -> str:
        """The same for a page on which nothing can be chosen."""
        return self.show(reading, [choice.value for choice in self.choices(readings, [])])


def places(names: Sequence[str]) -> tuple[tuple[str, int], ...]:
    """The places of a text to choose from, the last one first, which stays the last while the text grows."""
    return ("the last", LAST), *((f"{place}: {name}", place) for place, name in enumerate(names))


def resolve(place: int, count: int) -> int:
    """A place chosen among `places` as a number below `count`."""
    return count - 1 if place == LAST else min(place, count - 1)


def kept(choices: list[Choice], values: Sequence[Any]) -> list[Choice]:
    """Choices with what is chosen now, as far as it is still there."""
    return [choice.keep(value) for choice, value in zip(choices, values, strict=True)] if values else choices
