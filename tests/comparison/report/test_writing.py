import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from helpers.errors import refused
from helpers.made_up_comparisons import FakeComparison, trial_row
from helpers.pages import addresses, parse_page
from smht.comparison.report import check_extras, final_table, summarise, write_report
from smht.errors import SmhtError

pytest.importorskip("scipy")
pytest.importorskip("matplotlib")

Rows = list[dict[str, Any]]


def written(folder: Path) -> tuple[str, str]:
    """The report as Markdown and as a page, both checked."""
    write_report(folder)
    markdown, text = ((folder / name).read_text(encoding="utf-8") for name in ("report.md", "report.html"))
    assert addresses(parse_page(text)) == {"data:,"}
    pictures = {line.partition("](")[2][:-1] for line in markdown.splitlines() if line.startswith("![")}
    assert {f"figures/{path.name}" for path in (folder / "figures").iterdir()} == pictures
    return markdown, text


def test_a_whole_comparison(tmp_path: Path) -> None:
    markdown, text = written(FakeComparison().write(tmp_path))
    for needle in ("beats dense", "p, Holm", "1e-3: ", "11" * 32, "smht compare tinyshakespeare.txt", "2.11.0"):
        assert needle in markdown
        assert needle.replace(" < ", " &lt; ") in text
    names = [
        "curves-seconds",
        "curves-tokens",
        "curves-training-multiply-adds",
        "differences",
        "pareto-seconds",
        "rates",
    ]
    assert sorted(path.stem for path in (tmp_path / "figures").iterdir()) == names
    assert all(path.read_bytes().startswith(b"<?xml") for path in (tmp_path / "figures").iterdir())
    assert written(tmp_path) == (markdown, text)


def only_searches(comparison: FakeComparison) -> Rows:
    return comparison.searches()


def nothing(comparison: FakeComparison) -> Rows:
    return []


def one_final(comparison: FakeComparison) -> Rows:
    return comparison.finals()[:1]


def all_failed(comparison: FakeComparison) -> Rows:
    failed = {"status": "failed", "validation_loss": None, "bits_per_byte": None, "curve": [], "error": "out of memory"}
    return [row | failed for row in (*comparison.searches(), *comparison.finals())]


def no_numbers(comparison: FakeComparison) -> Rows:
    bad = [float("nan"), float("inf"), -float("inf")]
    names = ("validation_loss", "seconds", "tokens_per_second", "bits_per_byte", "repeats")
    return [
        row | {name: bad[(place + shift) % 3] for shift, name in enumerate(names)}
        for place, row in enumerate((*comparison.searches(), *comparison.finals()))
    ]


def infinite_costs(comparison: FakeComparison) -> Rows:
    costs = {"seconds": float("inf"), "repeats": float("nan"), "bits_per_byte": None, "peak_memory_bytes": None}
    return [row | costs for row in comparison.finals()]


def tiny_and_huge(comparison: FakeComparison) -> Rows:
    rows = [*comparison.searches(), *comparison.finals()]
    for place, row in enumerate(rows):
        scale = 10.0 ** (place % 41 * 5 - 100)
        changes = {name: row[name] * scale for name in ("validation_loss", "seconds", "learning_rate", "repeats")}
        curve = [point | {"validation_loss": scale, "seconds": scale} for point in row["curve"]]
        row |= {**changes, "curve": curve, "parameters": int(scale), "tokens": 0, "training_multiply_adds": 0}
    return rows


def nothing_but_zero(comparison: FakeComparison) -> Rows:
    point = dict.fromkeys(("step", "tokens", "seconds", "training_multiply_adds", "validation_loss"), 0)
    numbers = ("validation_loss", "learning_rate", "seconds", "parameters", "tokens", "training_multiply_adds")
    return [
        row | dict.fromkeys(numbers, 0) | {"curve": [point]} for row in (*comparison.searches(), *comparison.finals())
    ]


def diverged_finals(comparison: FakeComparison) -> Rows:
    rows = comparison.finals()
    for row in rows[::2]:
        curve = [*row["curve"][:4], row["curve"][4] | {"validation_loss": None}]
        row |= {"status": "diverged", "validation_loss": None, "curve": curve, "error": "the loss became nan"}
    return rows


ROWS = [
    only_searches,
    nothing,
    one_final,
    all_failed,
    no_numbers,
    infinite_costs,
    tiny_and_huge,
    nothing_but_zero,
    diverged_finals,
]


@pytest.mark.parametrize("rows", ROWS)
def test_whatever_came_out_there_is_a_report(tmp_path: Path, rows: Callable[[FakeComparison], Rows]) -> None:
    comparison = FakeComparison(seeds=(0, 1))
    markdown, _ = written(comparison.write(tmp_path, rows(comparison)))
    assert "nan" not in markdown.replace("became nan", "")
    assert "inf " not in markdown and "None" not in markdown


def test_a_trial_that_diverged_shows_how_far_it_came(tmp_path: Path) -> None:
    comparison = FakeComparison(seeds=(0,))
    _, text = written(comparison.write(tmp_path, diverged_finals(comparison)))
    [picture] = [figure for figure in parse_page(text).all("figure") if "training tokens" in figure.text]
    assert "1 lines, one a variant. Loss at the end: split 1." in picture.text
    colours = ("var(--series-0)", "var(--series-1)", "var(--series-2)")
    start = text.index("curves-tokens-title")
    assert all(colour in text[start : text.index("</figure>", start)] for colour in colours)
    assert "the loss became nan" in text


def test_one_variant_has_nothing_to_be_compared_with(tmp_path: Path) -> None:
    markdown, _ = written(FakeComparison(("split",)).write(tmp_path))
    assert "split is the only variant: there is nothing to compare it with." in markdown
    assert "Paired" not in markdown


def test_no_variants_at_all(tmp_path: Path) -> None:
    markdown, _ = written(FakeComparison(()).write(tmp_path))
    assert "# A comparison of 0 variants" in markdown


def test_a_variant_without_results_is_in_the_tables(tmp_path: Path) -> None:
    comparison = FakeComparison()
    rows = [row for row in (*comparison.searches(), *comparison.finals()) if row["variant"] != "split"]
    markdown, _ = written(comparison.write(tmp_path, rows))
    assert "| split | – | – | – | 0 (3 missing) | – |" in markdown
    assert "split against dense: no difference can be told: no seed is finished for both." in markdown


@pytest.mark.slow
def test_twenty_variants(tmp_path: Path) -> None:
    markdown, text = written(FakeComparison(("dense", *(f"split+H={heads}" for heads in range(19)))).write(tmp_path))
    assert "# A comparison of 20 variants" in markdown
    assert markdown.count(" against dense: ") + markdown.count("At equal") == 19
    assert text.count('class="legend"') == 3


def test_a_record_with_the_least_there_can_be(tmp_path: Path) -> None:
    comparison = FakeComparison(("a", "b"))
    folder = comparison.write(tmp_path, comparison.searches())
    (folder / "comparison.json").write_text(json.dumps({"asked": {}, "variants": [], "seeds": []}))
    markdown, _ = written(folder)
    assert "No data were recorded." in markdown and "# a against b" in markdown


def test_an_old_report_is_replaced(tmp_path: Path) -> None:
    comparison = FakeComparison(("dense", "split"))
    folder = comparison.write(tmp_path, comparison.searches())
    (folder / "figures").mkdir()
    for name in ("report.md", "report.html", "figures/rates.svg", "figures/of-the-user.svg"):
        (folder / name).write_text("old")
    write_report(folder)
    assert "old" not in {path.read_text() for path in (folder / "report.md", folder / "figures" / "rates.svg")}
    assert (folder / "figures" / "of-the-user.svg").read_text() == "old"


def test_lone_surrogates_do_no_harm(tmp_path: Path) -> None:
    data = {"text": {"description": "file \udc80", "sha256": "00"}}
    markdown, _ = written(FakeComparison(("dense",), changes={"data": data}).write(tmp_path, []))
    assert "file ?" in markdown


@pytest.mark.parametrize("module", ["scipy.stats", "matplotlib.figure"])
def test_a_missing_extra_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, module: str) -> None:
    folder = FakeComparison(("dense",)).write(tmp_path)
    monkeypatch.setitem(sys.modules, module, None)
    with refused("a report needs scipy and matplotlib", "pip install 'smht[compare]'"):
        write_report(folder)
    with refused("pip install 'smht[compare]'"):
        check_extras()
    assert sorted(path.name for path in folder.iterdir()) == ["comparison.json", "results.jsonl"]


def test_a_disk_that_refuses_is_one_line(tmp_path: Path) -> None:
    folder = FakeComparison(("dense",)).write(tmp_path, [])
    (folder / "figures").write_text("a file")
    with refused("the report in", "could not be written", kind=SmhtError):
        write_report(folder)


def test_the_terminal_gets_the_final_table(tmp_path: Path) -> None:
    table = final_table(summarise(FakeComparison().write(tmp_path)))
    assert table.headers[:2] == ("variant", "validation loss, nats")
    assert [row[0].text for row in table.cells()] == ["dense", "split", "split+shuffle"]
    assert sum(row[1].is_marked for row in table.cells()) == 1


def test_rows_of_another_comparison_are_shown_too(tmp_path: Path) -> None:
    comparison = FakeComparison(("dense",))
    rows = [*comparison.finals(), trial_row("stranger", "final", 0, 1.6)]
    table = final_table(summarise(comparison.write(tmp_path, rows)))
    assert [cell.text for cell in table.cells()[-1]][:2] == ["stranger", "1.6000"]
