"""Heads as they are named on the command line: `layer.head`, or `encoder.layer.head` where there are two stacks."""

from typing import Any

from smht.errors import UsageError

STACKS = ("encoder", "decoder")


def read_edits(
    drop: str | None, freeze: str | None, swap: str | None, swap_weights: str | None, parts: tuple[str, ...] | None
) -> list[Any]:
    """What the options ask for, in their order.

    Raises:
        UsageError: a name that is none; the message shows how to write one.
    """
    from smht.inspection import Drop, DropLineage, Freeze

    edits: list[Any] = []
    for name in _names(drop):
        if _is_number(name):
            edits.append(DropLineage(int(name)))
        else:
            stack, layer, head = _read_head(name)
            edits.append(Drop(layer, head, stack, parts))
    for name in _names(freeze):
        stack, layer, head = _read_head(name)
        edits.append(Freeze(layer, head, stack, parts))
    edits += [_read_swap(name, "outputs", parts) for name in _names(swap)]
    edits += [_read_swap(name, "weights", parts) for name in _names(swap_weights)]
    return edits


def read_parts(text: str | None) -> tuple[str, ...] | None:
    """Names of parts, with hyphens or underscores."""
    return None if text is None else tuple(name.replace("-", "_") for name in _names(text))


def _names(text: str | None) -> list[str]:
    return [] if text is None else [name.strip() for name in text.split(",")]


def _read_head(name: str) -> tuple[str, int, int]:
    """Stack, layer and head."""
    stack, found, rest = name.partition(".")
    if not found or stack not in STACKS:
        stack, rest = "", name
    numbers = rest.split(".")
    if len(numbers) != 2 or not all(map(_is_number, numbers)):
        raise UsageError(
            f"{name!r} names no head: write layer.head, such as 0.2, and encoder.0.2 or decoder.0.2 where there are "
            "two stacks"
        )
    return stack, int(numbers[0]), int(numbers[1])


def _is_number(text: str) -> bool:
    """A whole number, and none so long that Python refuses to read it."""
    return text.isdecimal() and len(text) < 10


def _read_swap(name: str, what: Any, parts: tuple[str, ...] | None) -> Any:
    from smht.inspection import Swap

    first, found, second = name.partition(":")
    if not found:
        raise UsageError(f"{name!r} names no two heads: write them with a colon between, such as 0.1:0.3")
    stack, layer, head = _read_head(first)
    other_stack, other_layer, other = _read_head(second)
    if stack != other_stack:
        raise UsageError(f"{name!r} names heads of two stacks, which do not fit each other: swap heads of one")
    return Swap(layer, head, other, None if other_layer == layer else other_layer, stack, parts, what)
