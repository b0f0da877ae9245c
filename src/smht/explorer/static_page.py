"""The page as one file: no script, no request to anywhere, all figures that fit."""

from html import escape
from pathlib import Path

from smht.errors import UsageError
from smht.explorer.markup import words
from smht.explorer.reading import Reading, Typed
from smht.explorer.section import Section
from smht.explorer.sections import SECTIONS
from smht.explorer.viewer import Viewer, side_by_side
from smht.training.files import write_bytes
from smht.training.run_folder import writing

# Nothing is fetched, not even by mistake; an empty icon keeps browsers from asking for one.
_HEAD = """\
<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">
<meta http-equiv="Content-Security-Policy" content="default-src 'none'; style-src 'unsafe-inline'; img-src data:">
<link rel="icon" href="data:,">
<title>{title}</title>
<style>
{style}</style>
</head>
<body class="file">
"""


def save_page(viewer: Viewer, typed: Typed, path: Path) -> None:
    """Write what a browser would show to a file.

    Args:
        viewer: of the models.
        typed: what they read.
        path: of the file.

    Raises:
        UsageError: see `check_path`; or text that a model cannot read.
        SmhtError: the disk is full or cannot be written.
    """
    check_path(path)
    page = compose_page(viewer, typed)
    with writing(str(path), "free some space, then repeat the command"):
        write_bytes(path, page.encode("utf-8", "replace"))


def check_path(path: Path) -> None:
    """Make sure that a page can be written there.

    Raises:
        UsageError: no name of a page, a folder that is not there, or something that is there already.
    """
    if path.suffix.lower() not in (".html", ".htm"):
        raise UsageError(f"{path}: name an .html file")
    if not path.absolute().parent.is_dir():
        raise UsageError(f"{path}: there is no folder {path.absolute().parent}")
    if path.exists():
        raise UsageError(f"{path} is there already: name another --save")


def compose_page(viewer: Viewer, typed: Typed) -> str:
    """The whole page.

    Raises:
        UsageError: text that a model cannot read.
    """
    readings = viewer.read(typed)
    names = " and ".join(subject.name for subject in viewer.subjects)
    style = Path(__file__).with_name("explorer.css").read_text(encoding="utf-8")
    links = "".join(f'<a href="#{section.name}">{words(section.heading)}</a>' for section in SECTIONS)
    models = "".join(f"<li><strong>{words(s.name)}</strong>: {words(s.description)}</li>" for s in viewer.subjects)
    quoted = words(typed.text)
    return "".join(
        [
            _HEAD.format(title=escape(f"smht explorer: {names}"), style=style),
            f'<div class="smht"><header><h1>smht explorer</h1><ul>{models}</ul><pre dir="auto">{quoted}</pre></header>',
            f'<nav aria-label="Sections">{links}</nav></div>\n<main>\n',
            *(_section(section, readings) for section in SECTIONS),
            "</main>\n</body>\n</html>\n",
        ]
    )


def _section(section: Section, readings: list[Reading]) -> str:
    figures = side_by_side([(reading.subject, section.show_all(readings, reading)) for reading in readings])
    head = f'<div class="smht"><h2>{words(section.heading)}</h2><p class="lead">{words(section.lead)}</p></div>'
    return f'<section id="{section.name}">\n{head}\n{figures}\n</section>\n'
