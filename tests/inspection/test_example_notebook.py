"""`examples/see_inside.ipynb` runs, and what is committed with it is what it shows."""

import itertools
import json
import sys
import tempfile
from pathlib import Path
from typing import Any

import pytest

PATH = Path(__file__).parents[2] / "examples" / "see_inside.ipynb"


def outputs(cells: list[Any]) -> list[list[tuple[str, ...]]]:
    """Of each cell the kinds of what it shows; what is printed counts once, in however many pieces it came."""
    kinds = [[(one["output_type"], *sorted(one.get("data", ()))) for one in cell.get("outputs", ())] for cell in cells]
    return [[kind for kind, _ in itertools.groupby(of_cell)] for of_cell in kinds]


def test_what_is_committed_is_small_and_names_no_machine() -> None:
    text = PATH.read_text(encoding="utf-8")
    assert len(text) < 200_000
    places = (PATH.parents[1], Path.home(), sys.prefix, tempfile.gettempdir())
    for found in (*(f"{place}/" for place in places), "site-packages", '"stderr"', "Traceback"):
        assert found not in text
    assert any(kinds for kinds in outputs(json.loads(text)["cells"]))


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of Jupyter's own libraries
def test_it_runs_and_shows_the_same_kinds_of_output(tmp_path: Path) -> None:
    nbclient = pytest.importorskip("nbclient")
    nbformat = pytest.importorskip("nbformat")
    pytest.importorskip("matplotlib")
    committed = nbformat.read(PATH, as_version=4)
    run = nbformat.read(PATH, as_version=4)
    resources = {"metadata": {"path": str(tmp_path)}}
    nbclient.NotebookClient(run, timeout=200, coalesce_streams=True, resources=resources).execute()
    assert outputs(run.cells) == outputs(committed.cells)
    for cell in run.cells:
        assert all(output.get("name") != "stderr" for output in cell.get("outputs", ())), cell
