"""`smht explorer`."""

import shlex
import webbrowser
from pathlib import Path
from typing import Annotated, Any

import typer

from smht.cli.output import print_json, progress_console, quieten_libraries
from smht.errors import UsageError


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command(name="explorer")(explorer)


def explorer(
    runs: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="RUN|TEXT",
            help="A run folder, or two runs to see side by side; none for the article's mini model, whose texts are "
            "token ids. With --save, a text comes last.",
            show_default=False,
        ),
    ] = None,
    *,
    save: Annotated[Path | None, typer.Option(help="Write the figures to this page in place of serving one.")] = None,
    port: Annotated[int | None, typer.Option(help="Where to listen.", show_default="the first free from 7860")] = None,
    no_browser: Annotated[bool, typer.Option("--no-browser", help="Open no browser.")] = False,
    json: Annotated[bool, typer.Option("--json", help="Print the address or the file as JSON.")] = False,
) -> None:
    """Look inside a model on a page of this machine's."""
    quieten_libraries()
    from smht.explorer.extras import check_extras

    check_extras(is_served=save is None)
    names, text = _sort(runs or [], save)
    if save is None:
        _serve(names, port, json, opens_browser=not no_browser)
        return
    from smht.explorer.reading import Typed
    from smht.explorer.static_page import check_path, save_page

    if port is not None or no_browser:
        raise UsageError("--port and --no-browser are for a page that is served, and --save writes a file")
    check_path(save)
    viewer = _viewer(names)
    save_page(viewer, Typed(viewer.first_text if text is None else text), save)
    if json:
        print_json({"page": str(save)})
    else:
        print(save)


def _sort(arguments: list[str], save: Path | None) -> tuple[list[str], str | None]:
    """Run folders, and the text where a file is to be written."""
    runs, text = arguments, None
    if save is not None and arguments:
        *runs, text = arguments
        if not runs and not _are_ids(text):
            run = shlex.quote(text)
            raise UsageError(f"give a text after the run, such as: smht explorer {run} 'a text' --save {save}")
    if len(runs) > 2:
        raise UsageError(
            f"{len(runs)} runs were named and a page shows two at most; "
            "quote a text that has spaces, and give it with --save only"
        )
    return runs, text


def _are_ids(text: str) -> bool:
    """Whether this is a text of the article's mini model, rather than a run."""
    return not Path(text).exists() and all(part.strip().isdecimal() for part in text.split(","))


def _viewer(runs: list[str]) -> Any:
    from smht.explorer.subject import preset_subject, run_subject
    from smht.explorer.viewer import Viewer

    return Viewer([run_subject(Path(run)) for run in runs] or [preset_subject()])


def _serve(runs: list[str], port: int | None, json: bool, opens_browser: bool) -> None:
    from smht.explorer.server import Server

    server = Server(_viewer(runs), port=port)
    if json:
        print_json({"address": server.address})
    else:
        print(f"{server.address}  (for this machine only; Ctrl-C ends it)")
    print(end="", flush=True)
    if opens_browser:
        webbrowser.open(server.address)
    try:
        server.wait()
    except KeyboardInterrupt:
        progress_console().print("the explorer has ended", highlight=False)
    finally:
        server.close()
