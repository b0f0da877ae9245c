"""A call of an op as the conditions of a backend see it."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from torch import Tensor


@dataclass(slots=True)
class Call:
    """The arguments of one op, in the order of `smht.ops.reference`: `x`, then a weight `[H, I, O]`, then others."""

    op: str
    arguments: tuple[Any, ...]

    @property
    def tensors(self) -> list[Tensor]:
        """The tensors among the arguments."""
        return [argument for argument in self.arguments if isinstance(argument, Tensor)]


@dataclass(frozen=True)
class Condition:
    """What a call must fulfil, in words that go on after "needs", and whether it does."""

    needs: str
    holds: Callable[[Call], bool]


@dataclass(frozen=True)
class Worth:
    """When a backend is faster than the reference.

    Small calls notice how long they are looked at, so the question that most of them fail is a number, and the others
    are asked about the bare arguments.

    Attributes:
        needs: in words that go on after "needs".
        holds: whether a call is so, if its first tensor has enough numbers.
        least_numbers: how many.
    """

    needs: str
    holds: Callable[[tuple[Any, ...]], bool]
    least_numbers: int = 0

    def is_given(self, arguments: tuple[Any, ...]) -> bool:
        """Whether a call is worth it."""
        return arguments[0].numel() >= self.least_numbers and self.holds(arguments)


def always(_: tuple[Any, ...]) -> bool:
    """Of calls that nothing more is asked of."""
    return True


def never(_: tuple[Any, ...]) -> bool:
    """Of a backend that no call is to take by itself; it is not even asked."""
    return False
