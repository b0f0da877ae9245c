"""Errors that a user can act on, each with the exit code that the command line gives it."""

import difflib
from collections.abc import Iterable


class SmhtError(Exception):
    """Something failed while running; the message is one line for the user. Exit code 1."""

    exit_code = 1
    is_told = False
    """Whether another process tells the user, so that this one need not."""


class UsageError(SmhtError, ValueError):
    """Something was asked for wrongly: a value, a file, a combination. Exit code 2."""

    exit_code = 2


def did_you_mean(name: str, choices: Iterable[str]) -> str:
    """The end of an error line about an unknown `name`: the nearest of `choices`, or all of them."""
    known = sorted(choices)
    near = difflib.get_close_matches(name, known, n=3, cutoff=0.5)
    if near:
        return f"did you mean {' or '.join(near)}?"
    return f"choose from {', '.join(known)}"


def first_line(error: BaseException) -> str:
    """The most telling line of an error: the cause's, where one library wraps another's error."""
    root = error.__cause__ or error
    lines = [line.strip() for line in str(root).splitlines() if line.strip()]
    return lines[0] if lines else type(root).__name__
