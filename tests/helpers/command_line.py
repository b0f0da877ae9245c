"""`smht` called in this process, and what its tests say about refusals."""

import hashlib
import io
import json
import sys
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest.mock import patch

from smht.cli.main import run

TINY = (
    *("--hidden-size", "16", "--num-hidden-layers", "1", "--num-attention-heads", "2"),
    *("--context", "16", "--batch-size", "2", "--tokenizer", "byte", "--device", "cpu"),
)
"""Flags of a model that trains in a moment."""

FOUR_STEPS = ("--steps", "4", "--evaluate-every", "2")


@dataclass(frozen=True)
class Result:
    """How a call ended."""

    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        """What was printed by `--json`."""
        return json.loads(self.out, parse_constant=_refuse_constant)


def _refuse_constant(name: str) -> None:
    raise ValueError(f"{name} is no JSON")


def smht(*arguments: object, stdin: bytes = b"") -> Result:
    """Call `smht` with these arguments and this standard input."""
    out, err = io.StringIO(), io.StringIO()
    standard_input = io.TextIOWrapper(io.BytesIO(stdin))
    with redirect_stdout(out), redirect_stderr(err), patch.object(sys, "stdin", standard_input):
        code = run([str(argument) for argument in arguments])
    return Result(code, out.getvalue(), err.getvalue())


def succeed(*arguments: object, stdin: bytes = b"") -> Result:
    """The same, for a call that has to succeed."""
    result = smht(*arguments, stdin=stdin)
    assert result.code == 0, result.err
    return result


def contents(folder: Path) -> dict[str, str]:
    """Every file and folder below `folder`, with a hash of what is in it."""
    return {
        str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest() if path.is_file() else "folder"
        for path in sorted(folder.rglob("*"))
    }


def refuse(*arguments: object, says: tuple[str, ...] | str, code: int = 2, stdin: bytes = b"") -> str:
    """Check that a call does nothing but print one line that holds all of `says`; return the line.

    Everything below the working directory has to stay as it was.
    """
    before = contents(Path.cwd())
    result = smht(*arguments, stdin=stdin)
    assert result.code == code, result
    assert result.out == ""
    check_error_line(result.err, says)
    assert contents(Path.cwd()) == before
    return result.err


def check_error_line(text: str, says: tuple[str, ...] | str) -> None:
    """Check that `text` is one line of ours."""
    assert text.endswith("\n") and text.count("\n") == 1, text
    assert text.startswith("smht: "), text
    for fragment in (says,) if isinstance(says, str) else says:
        assert fragment in text
