"""`smht`: finds the subcommand, and turns every error that a user can act on into one line and an exit code."""

import io
import os
import sys
from typing import Annotated

import typer

from smht.cli import (
    ablate,
    attention,
    compare,
    dense,
    doctor,
    evaluate,
    explorer,
    generate,
    heads,
    plan,
    predict,
    presets,
    runs,
    scaling,
    split,
    summary,
    trace,
    train,
)
from smht.cli.output import fail
from smht.errors import SmhtError
from smht.version import __version__

FAILED = 1
WRONG = 2
INTERRUPTED = 130

app = typer.Typer(
    name="smht",
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"]},
)
for module in (
    train,
    compare,
    scaling,
    split,
    dense,
    generate,
    predict,
    evaluate,
    summary,
    plan,
    trace,
    attention,
    heads,
    ablate,
    explorer,
    presets,
    runs,
    doctor,
):
    module.register(app)


def _show_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"smht {__version__}")
        raise typer.Exit


@app.callback()
def _smht(
    version: Annotated[
        bool, typer.Option("--version", callback=_show_version, is_eager=True, help="Show the version and exit.")
    ] = False,
) -> None:
    """Split multi-head Transformers: train, run and inspect language models block-diagonal per head."""


def main() -> None:
    """Run the command line and exit: 0 done, 1 failed while running, 2 asked for wrongly, 130 interrupted."""
    if isinstance(sys.stdout, io.TextIOWrapper):
        # A model may say, and a folder may be called, what the terminal's encoding has no letters for.
        sys.stdout.reconfigure(errors="replace")
    code = run(sys.argv[1:])
    _forget_unwritten_output()
    sys.exit(code)


def run(arguments: list[str]) -> int:
    """The exit code of `smht` with these arguments."""
    if not arguments:
        run(["--help"])
        return WRONG
    command = typer.main.get_command(app)
    try:
        # Not command.main(), which has exit codes of its own for Ctrl-C and for a reader that has gone.
        with command.make_context("smht", list(arguments), obj=tuple(arguments)) as context:
            command.invoke(context)
        print(end="", flush=True)
    except typer.Exit as end:
        return end.exit_code
    except typer.TyperException as error:
        return fail(_explain_usage(error), WRONG)
    except SmhtError as error:
        return error.exit_code if error.is_told else fail(str(error), error.exit_code)
    except KeyboardInterrupt:
        # A terminal interrupts every rank that it shows; one line is enough.
        is_told = os.environ.get("RANK", "0") != "0"
        return INTERRUPTED if is_told else fail("interrupted", INTERRUPTED)
    except BrokenPipeError:
        return 0  # the reader of our output has had enough, as `head` does
    except OSError as error:
        return fail(f"the system refused: {error}", FAILED)
    except (MemoryError, RuntimeError) as error:
        if not _is_out_of_memory(error):
            raise
        return fail(f"out of memory: {error}; take a smaller --batch-size, --context or model", FAILED)
    return 0


def _explain_usage(error: typer.TyperException) -> str:
    """Typer's message as one line, with the nearest names where it knows some."""
    message = error.format_message().replace("Value error, ", "")
    nearest = getattr(error, "possibilities", None)
    if nearest:
        message = f"{error.message}: did you mean {' or '.join(nearest)}?"
    elif not message.endswith("?"):
        context: typer.Context | None = getattr(error, "ctx", None)
        message = f"{message.rstrip('.')}; see {context.command_path if context else 'smht'} --help"
    return message[:1].lower() + message[1:]


def _is_out_of_memory(error: Exception) -> bool:
    """Whether PyTorch, which has an error of its own for this on a GPU only, ran out of memory."""
    text = str(error).lower()
    return isinstance(error, MemoryError) or "out of memory" in text or "allocate memory" in text


def _forget_unwritten_output() -> None:
    """Keep Python from complaining at exit about output that nobody took."""
    try:
        print(end="", flush=True)
    except OSError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


if __name__ == "__main__":
    main()
