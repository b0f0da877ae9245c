"""`report.md` and `report.html` of a comparison. Needs scipy and matplotlib."""

from pathlib import Path

from smht.comparison.report.document import Document, Gallery
from smht.comparison.report.ladder import Ladder, read_ladder
from smht.comparison.report.ladder_sections import compose_ladder
from smht.comparison.report.markdown import FIGURES, write_markdown
from smht.comparison.report.page import write_page
from smht.comparison.report.sections import compose
from smht.comparison.report.summary import summarise
from smht.errors import UsageError, first_line
from smht.training.files import write_bytes
from smht.training.run_folder import writing

MARKDOWN = "report.md"
PAGE = "report.html"


def write_report(folder: Path) -> None:
    """Write what a comparison came to, finished or not: `report.md` with `figures/`, and `report.html`.

    Args:
        folder: with `comparison.json` and `results.jsonl`.

    Raises:
        UsageError: the folder holds no comparison, a file is damaged, or an extra is missing.
        SmhtError: the disk is full or cannot be written.
    """
    check_extras()
    _write(folder, compose(summarise(folder)))


def write_ladder_report(folder: Path) -> Ladder:
    """The same for a ladder of sizes, and what it came to.

    Args:
        folder: with `scaling.json` and the comparisons that it names.

    Raises:
        UsageError: the folder holds no ladder, a file is damaged, or an extra is missing.
        SmhtError: the disk is full or cannot be written.
    """
    check_extras()
    ladder = read_ladder(folder)
    _write(folder, compose_ladder(ladder))
    return ladder


def _write(folder: Path, document: Document) -> None:
    with writing(f"the report in {folder}", "free some space, then repeat the command"):
        (folder / FIGURES).mkdir(exist_ok=True)
        for name, svg in _figure_files(document).items():
            write_bytes(folder / FIGURES / f"{name}.svg", svg)
        write_bytes(folder / MARKDOWN, write_markdown(document).encode(errors="replace"))
        write_bytes(folder / PAGE, write_page(document).encode(errors="replace"))


def check_extras() -> None:
    """Make sure that a report can be written, before hours are spent on what it is about.

    Raises:
        UsageError: scipy or matplotlib is missing.
    """
    try:
        import matplotlib.figure
        import scipy.stats

        del matplotlib, scipy
    except ImportError as error:
        raise UsageError(
            f"a report needs scipy and matplotlib ({first_line(error)}): pip install 'smht[compare]'"
        ) from None


def _figure_files(document: Document) -> dict[str, bytes]:
    galleries = [block for section in document.sections for block in section.blocks if isinstance(block, Gallery)]
    return {figure.name: figure.file for gallery in galleries for figure in gallery.figures}
