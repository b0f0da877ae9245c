import io
import json
import signal
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from rich.console import Console

from helpers.command_line import TINY, Result, contents, refuse, smht, succeed
from helpers.comparisons import MEASURED
from smht.comparison import progress, rounds, setting
from smht.comparison.budget import parse_budgets
from smht.comparison.progress import ComparisonDisplay
from smht.comparison.record import new_record
from smht.comparison.request import CompareRequest
from smht.comparison.trial import TrialRun
from smht.comparison.variants import parse_variants
from smht.training.request import TrainRequest

WITHOUT_VARIANTS = ("compare", "text.txt", *TINY)
COMPARE = (*WITHOUT_VARIANTS, "--variants", "split+shuffle,dense")
SHORT = ("--budget", "tokens=320", "--seeds", "2", "--rates", "2")


@pytest.fixture(autouse=True)
def reports(monkeypatch: pytest.MonkeyPatch) -> list[Path]:
    """The folders that a report was asked for; nothing is measured."""
    written: list[Path] = []
    monkeypatch.setattr(setting, "measure", lambda *arguments: MEASURED)
    report = SimpleNamespace(check_extras=lambda: None, write_report=written.append)
    monkeypatch.setitem(sys.modules, "smht.comparison.report", report)
    return written


def lines_of(result: Result) -> list[str]:
    return result.err.splitlines()


def test_a_comparison_says_what_it_will_do_then_how_it_goes(reports: list[Path]) -> None:
    result = succeed(*COMPARE, *SHORT, "--output", "here")
    lines = lines_of(result)
    assert lines[0].split() == [
        "variant",
        "width",
        "feed-forward",
        "blocks",
        "parameters",
        "multiply-adds",
        "off",
        "tokens/s",
    ]
    assert lines[2].split()[:6] == ["split+shuffle", "16", "64", "1", "5,776", "6,192"]
    assert lines[3].split()[0] == "dense" and lines[3].split()[6].endswith("%")
    starts = [line.split()[0] for line in lines[4:9]]
    assert starts == ["text", "budget", "trials", "expect", "folder"]
    assert "passes over the text" in lines[5]
    for fragment in ("2 MB of memory", "of disk", "on cpu with", "split projections by"):
        assert fragment in lines[7]
    assert "8: 2 rates each on a fifth of the length, then 2 seeds" in lines[6]
    shown = [line for line in lines[9:] if line.startswith(("search", "final "))]
    assert sum("  done  " in line for line in shown) >= 8
    assert any(" 50%  validation" in line for line in shown)
    assert lines[-1].endswith(", done")
    assert reports == [Path("here")]
    assert "\x1b" not in result.err


def test_a_narrow_terminal_has_room_for_names() -> None:
    table = progress._variants(*_first_comparison(), width=80)
    console = Console(width=80, file=io.StringIO())
    console.print(table)
    assert isinstance(console.file, io.StringIO)
    rows = console.file.getvalue().splitlines()
    assert rows[0].split() == ["variant", "width", "feed-forward", "parameters", "off", "tokens/s"]
    assert rows[2].split()[0] == "split+shuffle+dense-output"


def _first_comparison() -> tuple[Any, ...]:
    variants = parse_variants(["split+shuffle+dense-output,dense"])
    training = TrainRequest(texts=("text.txt",), tokenizer="byte", context=16, device="cpu")
    prepared = setting.prepare(CompareRequest(training, variants, parse_budgets(["parameters=50k"])))
    return prepared, new_record(prepared), dict.fromkeys((each.name for each in variants), MEASURED)


def test_the_results_are_a_table_and_json() -> None:
    out = succeed(*COMPARE, *SHORT, "--output", "here").out.splitlines()
    assert [line.split()[0] for line in out if line.strip()] == [
        "variant",
        "─" * len(out[1]),
        "split+shuffle",
        "dense",
        "report:",
    ]
    assert out[-1] == "report: here/report.html"
    values = succeed(*COMPARE, *SHORT, "--output", "here", "--json").json
    assert (values["folder"], values["status"]) == ("here", "finished")
    record = json.loads(Path("here/comparison.json").read_text())
    assert record["command"] == ["smht", *COMPARE, *SHORT, "--output", "here", "--json"]
    for row, variant in zip(values["variants"], record["variants"], strict=True):
        assert variant.items() <= row.items()
        assert (row["finished"], row["not_finished"], len(row["validation_losses"])) == (2, 0, 2)
        assert row["validation_loss"] == sum(row["validation_losses"]) / 2
        assert f"{row['validation_loss']:.4f}" in "\n".join(out)


def test_the_same_command_finds_its_folder_and_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    first = succeed(*COMPARE, *SHORT, "--json").json
    assert Path(first["folder"]).parent == Path("comparisons")
    monkeypatch.setattr(TrialRun, "advance", lambda *arguments: pytest.fail("a step was taken"))
    again = succeed(*COMPARE, *SHORT, "--json")
    assert again.json == first
    assert "8 of them are finished" in again.err or "finished" in again.err
    assert len(list(Path("comparisons").iterdir())) == 1


def test_an_interrupted_comparison_says_how_to_go_on(monkeypatch: pytest.MonkeyPatch, reports: list[Path]) -> None:
    monkeypatch.setattr(rounds, "SLICE_SECONDS", 1e-9)
    show = ComparisonDisplay.show_point

    def show_and_stop(self: ComparisonDisplay, run: TrialRun, point: dict[str, Any]) -> None:
        show(self, run, point)
        if point["step"] == 5:
            signal.raise_signal(signal.SIGINT)

    whole = succeed(*COMPARE, *SHORT, "--output", "whole", "--json").json
    arguments = (*COMPARE, *SHORT, "--output", "my folder", "--json")
    with monkeypatch.context() as patches:
        patches.setattr(ComparisonDisplay, "show_point", show_and_stop)
        result = smht(*arguments)
    assert result.code == 130
    assert result.json["status"] == "interrupted"
    command = lines_of(result)[-1].removeprefix("stopped, and saved in my folder; go on with: ")
    assert command.startswith("smht compare text.txt --hidden-size 16") and command.endswith(
        "--output 'my folder' --json"
    )
    assert reports == [Path("whole")]
    finished = succeed(*arguments).json
    for ours, theirs in zip(finished["variants"], whole["variants"], strict=True):
        assert ours["validation_losses"] == theirs["validation_losses"]
    assert reports == [Path("whole"), Path("my folder")]


def test_a_variant_that_never_comes_to_its_end_is_a_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    advance = TrialRun.advance

    def fail(self: TrialRun, seconds: float) -> Any:
        if self.trial.variant == "dense":
            raise RuntimeError("cannot allocate memory")
        return advance(self, seconds)

    monkeypatch.setattr(TrialRun, "advance", fail)
    result = smht(*COMPARE, *SHORT, "--output", "here")
    assert result.code == 1
    assert lines_of(result)[-1] == "smht: no final training of dense came to its end: results.jsonl says why"
    assert "failed: cannot allocate memory" in result.err
    assert "dense: every rate diverged or failed, so there is no final training of it" in lines_of(result)
    dense = next(line for line in result.out.splitlines() if line.startswith("dense"))
    assert dense.split()[1:5] == ["-", "-", "-", "0"]


def test_the_default_is_three_seeds_five_rates_and_the_standard_library(monkeypatch: pytest.MonkeyPatch) -> None:
    from smht.comparison import comparison

    asked = []

    def note(request: Any, output: Path | None, *others: Any) -> Any:
        asked.append((request, output))
        raise KeyboardInterrupt

    monkeypatch.setattr(comparison, "compare", note)
    assert smht("compare", "--budget", "time=2m").code == 130
    request, output = asked[0]
    assert (request.seeds, request.rates, request.solve_depth, output) == (3, 5, False, None)
    assert [variant.name for variant in request.variants] == ["split", "split+shuffle", "dense"]
    assert request.training.texts == ()


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("--budget", "paramters=1M"), ("no budget 'paramters'", "did you mean parameters?")),
        (("--budget", "tokens=640,time=2m"), "tokens and time are both budgets"),
        (("--budget", "tokens=640", "--budget", "tokens=64"), "tokens and tokens are both budgets"),
        (("--budget", "tokens=-5"), "tokens=-5 is no amount"),
        (("--budget", "tokens=lots"), "tokens=lots is no amount"),
        (("--budget", "time=soon"), "'soon' is no duration"),
        (("--budget", "tokens=640", "--seeds", "0"), "seeds = 0 must be from 1"),
        (("--budget", "tokens=640", "--seeds", "x"), ("'--seeds'", "see smht compare --help")),
        (("--budget", "tokens=640", "--rates", "0"), "rates = 0 must be from 1"),
        (("--budget", "tokens=640", "--split", "none"), "leave --split out"),
        (("--budget", "tokens=640,parameters=1M"), "leave --hidden-size out"),
        (("--budget", "tokens=640", "--output", "text.txt"), "text.txt is no folder"),
        (("--budget", "tokens=640", "--output", "folder"), "folder holds something else than a comparison"),
        (("--budget", "tokens=640", "--output", "text.txt/here"), "text.txt is a file"),
        (("--budget", "tokens=640", "--context", "5000"), ("fewer than one block of 5001", "--context")),
        (("--budget", "tokens=640", "--validation", "x", "--validation-fraction", "0.2"), "exclude each other"),
        (("--budget", "tokens=3"), "less than one step of split+shuffle"),
        ((), "give a --budget"),
    ],
)
def test_what_is_asked_for_wrongly(arguments: tuple[str, ...], says: tuple[str, ...] | str) -> None:
    Path("folder").mkdir()
    Path("folder/file").write_text("x")
    refuse(*COMPARE, *arguments, says=says)


@pytest.mark.parametrize(
    ("variants", "says"),
    [
        ("split,dens", ("'dens'", "did you mean dense?")),
        ("split,split+shufle", ("no word 'shufle'", "did you mean shuffle?")),
        ("split", "needs two variants or more, not 1"),
        ("split,dense,split", "variant split is there twice"),
        ("split,split+shuffle+H=1", ("variant split+shuffle+H=1", "there is one head")),
    ],
)
def test_variants_that_make_no_comparison(variants: str, says: tuple[str, ...] | str) -> None:
    refuse(*WITHOUT_VARIANTS, "--budget", "tokens=640", "--variants", variants, says=says)


def test_a_text_that_does_not_exist() -> None:
    refuse("compare", "nowhere.txt", "--budget", "tokens=640", says="nowhere.txt")


def test_a_budget_that_no_width_meets() -> None:
    arguments = ("--budget", "parameters=100,tokens=640", "--tokenizer", "byte")
    refuse("compare", "text.txt", *arguments, says=("no width gives split 100 parameters", "nearest is", "(width 8"))


def test_the_folder_of_another_comparison() -> None:
    succeed(*COMPARE, *SHORT, "--output", "here")
    before = contents(Path())
    refuse(
        *COMPARE,
        *SHORT[2:],
        "--budget",
        "tokens=640",
        "--output",
        "here",
        says=("length.amount = 320, not 640", "--output"),
    )
    record = Path("here/comparison.json")
    assert contents(Path()) == before
    whole = json.loads(record.read_text())
    changes = ({"variants": [1]}, {"seeds": [[1]]}, {"evaluation_windows": "all"})
    for damaged in ("{", "[]", '{"asked": {}}', *(json.dumps({**whole, **change}) for change in changes)):
        record.write_text(damaged)
        refuse(*COMPARE, *SHORT, "--output", "here", says=("here/comparison.json is damaged", "name another --output"))


def test_damaged_results() -> None:
    succeed(*COMPARE, *SHORT, "--output", "here")
    results = Path("here/results.jsonl")
    whole = results.read_text()
    first, rest = whole.split("\n", 1)
    results.write_text(f"{first[:-20]}\n{rest}")
    refuse(*COMPARE, *SHORT, "--output", "here", says=("here/results.jsonl, line 1, is damaged", "delete the line"))
    results.write_text(whole[:-20])  # as a kill could leave it
    succeed(*COMPARE, *SHORT, "--output", "here")
    assert len(results.read_text().splitlines()) == len(whole.splitlines())


def test_a_folder_that_cannot_be_written(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse_to(*arguments: Any, **options: Any) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(Path, "mkdir", refuse_to)
    refuse(*COMPARE, *SHORT, "--output", "here", code=1, says="here could not be written: Permission denied")
