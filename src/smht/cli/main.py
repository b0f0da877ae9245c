"""`smht`: finds the subcommand, and turns every error that a user can act on into one line and an exit code."""

import sys
from typing import Annotated

import click
import typer

from smht.cli import evaluate, generate, presets, runs, summary, train
from smht.cli.output import fail
from smht.errors import SmhtError, did_you_mean
from smht.version import __version__

INTERRUPTED = 130
WRONG = 2

app = typer.Typer(
    name="smht",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"]},
)
for module in (train, generate, evaluate, summary, presets, runs):
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
    sys.exit(run(sys.argv[1:]))


def run(arguments: list[str]) -> int:
    """The exit code of `smht` with these arguments."""
    command = typer.main.get_command(app)
    try:
        code = command.main(args=arguments, prog_name="smht", standalone_mode=False)
    except click.exceptions.NoArgsIsHelpError as error:
        typer.echo(error.ctx.get_help())
        return WRONG
    except click.ClickException as error:
        return fail(_explain_usage(error), WRONG)
    except SmhtError as error:
        return fail(str(error), error.exit_code)
    except ValueError as error:
        # SmhtConfig's own checks; anything else is a fault of ours and keeps its traceback.
        if not _is_configuration_error(error):
            raise
        return fail(_last_line(error), WRONG)
    except (KeyboardInterrupt, click.Abort):
        return fail("interrupted", INTERRUPTED)
    except BrokenPipeError:
        # The reader of our output has gone, as `head` does; Python would complain once more at exit.
        sys.stdout = None
        return 0
    return code if isinstance(code, int) else 0


def _explain_usage(error: click.ClickException) -> str:
    """Click's message as one line, with the nearest names of commands and options."""
    if isinstance(error, click.NoSuchOption):
        options = [name for parameter in error.ctx.command.params for name in parameter.opts] if error.ctx else []
        return f"there is no option {error.option_name}: {did_you_mean(error.option_name, options)}"
    message = " ".join(error.format_message().split())
    return message[:1].lower() + message[1:].rstrip(".")


def _is_configuration_error(error: ValueError) -> bool:
    return "SmhtConfig" in str(error)


def _last_line(error: BaseException) -> str:
    return str(error).strip().splitlines()[-1].strip()


if __name__ == "__main__":
    main()
