"""Results on standard output, everything else on standard error."""

import json
import os
import sys
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

_WIDTH_OF_FILES = 120
# What moves the cursor, rings, or changes colours; tabs and line ends stay.
_CONTROL_CHARACTERS = {code: "\ufffd" for code in (*range(32), *range(127, 160)) if chr(code) not in "\t\n\r"}


def fail(message: str, code: int) -> int:
    """Print one line about what went wrong; return the exit code."""
    print("smht: " + " ".join(message.split()), file=sys.stderr)
    return code


def print_json(value: Any) -> None:
    """The result for programs."""
    print(json.dumps(value, indent=2, ensure_ascii=False))


def harmless(text: str) -> str:
    """A model's text as a terminal can show it; unchanged where standard output is none."""
    return text.translate(_CONTROL_CHARACTERS) if sys.stdout is not None and sys.stdout.isatty() else text


def progress_console(quiet: bool = False) -> "Console":
    """Where progress goes: standard error, or nowhere."""
    from rich.console import Console

    return Console(stderr=True, quiet=quiet)


def result_console() -> "Console":
    """Where results go: standard output, not wrapped where it is no terminal."""
    from rich.console import Console

    class ResultConsole(Console):
        """For a reader who may go away, as `head` does: that is no fault of ours, as `smht.cli.main` knows."""

        def on_broken_pipe(self) -> None:
            raise BrokenPipeError

    console = ResultConsole()
    return console if console.is_terminal else ResultConsole(width=_WIDTH_OF_FILES)


def new_table(*headers: str) -> "Table":
    """A table without a frame; without headers, one of names and values."""
    from rich.box import SIMPLE_HEAD
    from rich.table import Table

    return Table(
        *headers, show_header=bool(headers), box=SIMPLE_HEAD, show_edge=False, pad_edge=False, padding=(0, 1, 0, 0)
    )


def quieten_libraries() -> None:
    """No progress bars and hints of other libraries in our output."""
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "true")
    from transformers.utils import logging

    logging.set_verbosity_error()
    logging.disable_progress_bar()
