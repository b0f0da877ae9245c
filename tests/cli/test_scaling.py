import signal
from pathlib import Path
from typing import Any

import pytest

from helpers.command_line import refuse, smht, succeed
from helpers.comparisons import MEASURED
from smht.comparison import report, rounds, scaling_law, setting
from smht.comparison.progress import ComparisonDisplay
from smht.comparison.report import ladder
from smht.comparison.trial import TrialRun

pytest.importorskip("scipy")
pytest.importorskip("matplotlib")

TINY = (
    *("--num-hidden-layers", "1", "--num-attention-heads", "2", "--position-embedding", "learned"),
    *("--context", "16", "--batch-size", "2", "--tokenizer", "byte", "--device", "cpu"),
)
WITHOUT_SIZES = ("scaling", "text.txt", *TINY, "--variants", "split+shuffle,dense", "--rates", "1")
SCALING = (*WITHOUT_SIZES, "--sizes", "5k,7k,10k,14k")
SHORT = ("--budget", "tokens=160", "--seeds", "2")


@pytest.fixture(autouse=True)
def fixed_costs(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is measured, little is drawn by lot, fits begin in few places, and no size has a report of its own."""
    monkeypatch.setattr(report, "write_report", lambda folder: (folder / "report.html").write_text("report"))
    monkeypatch.setattr(setting, "measure", lambda *arguments: MEASURED)
    monkeypatch.setattr(ladder, "REPLICATES", 5)
    monkeypatch.setattr(scaling_law, "_SHARES", (0.5,))
    monkeypatch.setattr(scaling_law, "_EXPONENTS", (0.3, 1.0))


def test_it_says_what_it_will_do_and_ends_in_a_report() -> None:
    result = succeed(*SCALING, *SHORT, "--output", "here")
    lines = result.err.splitlines()
    assert lines[0].split() == ["variant", "parameters", "width", "feed-forward", "tokens", "passes"]
    rows = [line.split() for line in lines[2:10]]
    assert [row[0] for row in rows] == ["split+shuffle", "dense"] * 4
    assert all(row[4] == "160" for row in rows)
    assert any(line.startswith("expect") and "4 sizes" in line for line in lines)
    assert [line for line in lines if line.startswith("size ")] == [
        f"size {place} of 4: {size} parameters, embeddings included"
        for place, size in enumerate(("5,000", "7,000", "10,000", "14,000"), 1)
    ]
    out = result.out.splitlines()
    assert out[0].split()[0] == "variant"
    assert out[-1] == "report: here/report.html"
    assert "lies below that of" in result.out
    for path in ("report.html", "report.md", "results.jsonl", "sizes/parameters-5000/report.html"):
        assert (Path("here") / path).stat().st_size


def test_the_same_command_finds_its_folder(monkeypatch: pytest.MonkeyPatch) -> None:
    first = succeed(*SCALING, *SHORT, "--json").json
    assert Path(first["folder"]).parent == Path("comparisons")
    monkeypatch.setattr(TrialRun, "advance", lambda *arguments: pytest.fail("a step was taken"))
    assert succeed(*SCALING, *SHORT, "--json").json == first
    assert first["laws"].keys() == {"parameters", "compute"}
    assert first["laws"]["parameters"]["fits"].keys() == {"split+shuffle", "dense"}


def test_one_seed_claims_no_interval() -> None:
    result = succeed(*SCALING, *SHORT[:2], "--seeds", "1", "--output", "here")
    assert "one seed: no interval is claimed" in result.err
    assert "[" not in result.out and "one seed: no interval" in result.out


def test_an_interrupted_ladder_says_how_to_go_on(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rounds, "SLICE_SECONDS", 1e-9)
    show = ComparisonDisplay.show_point

    def show_and_stop(self: ComparisonDisplay, run: TrialRun, point: dict[str, Any]) -> None:
        show(self, run, point)
        if point["step"] == 3:
            signal.raise_signal(signal.SIGINT)

    arguments = (*SCALING, *SHORT[:2], "--seeds", "1", "--output", "my folder")
    with monkeypatch.context() as patches:
        patches.setattr(ComparisonDisplay, "show_point", show_and_stop)
        result = smht(*arguments)
    assert result.code == 130 and result.out == ""
    last = result.err.splitlines()[-1]
    assert last.startswith("stopped, and saved in my folder; go on with: smht scaling text.txt")
    assert succeed(*arguments).out.endswith("report: my folder/report.html\n")


def test_a_variant_without_a_law_is_a_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    advance = TrialRun.advance

    def fail(self: TrialRun, seconds: float) -> Any:
        if self.trial.variant == "dense":
            raise RuntimeError("cannot allocate memory")
        return advance(self, seconds)

    monkeypatch.setattr(TrialRun, "advance", fail)
    result = smht(*SCALING, *SHORT[:2], "--seeds", "1", "--output", "here")
    assert result.code == 1
    assert result.err.splitlines()[-1].startswith("smht: no law of dense: too few sizes have a result")


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ((), "at least 4 sizes, not 0"),
        (("--sizes", "5k,7k,10k"), "at least 4 sizes, not 3"),
        (("--sizes", "100,7k,10k,14k"), ("no width gives split+shuffle 100 parameters", "1 block)")),
        (("--sizes", "5k,7k,10k,14k", "--variants", "split,dens"), ("'dens'", "did you mean dense?")),
        (("--sizes", "5k,7k,10k,14k", "--variants", "split,split+shufle"), "did you mean shuffle?"),
        (
            ("--sizes", "5k,7k,10k,14k", "--context", "5000", "--position-embedding", "none"),
            ("fewer than one block of 5001", "--context"),
        ),
        (("--sizes", "5k,7k,10k,14k", "--budget", "tokens=640,width=16"), "leave the budget width out"),
        (
            ("--sizes", "5k,7k,10k,14k", "--budget", "tokens=640", "--tokens-per-parameter", "20"),
            "give one of them",
        ),
        (("--sizes", "5k,7k,10k,14k", "--tokens-per-parameter", "0"), "tokens_per_parameter = 0.0 must be above 0"),
        (("--sizes", "5k,7k,10k,14k", "--tokens-per-parameter", "1e-9"), "less than one step"),
        (("--sizes", "5k,7k,10k,14k", "--hidden-size", "16"), "leave --hidden-size out"),
        (("--sizes", "5k,7k,10k,14k", "--initializer-range", "0.1", "--parametrisation", "mup"), "leave one of them"),
        (("--sizes", "5k,7k,10k,14k", "--output", "text.txt"), "text.txt is no folder"),
        (("--sizes", "5k,7k,10k,14k", "--validation", "x", "--validation-fraction", "0.2"), "exclude each other"),
    ],
)
def test_what_is_asked_for_wrongly(arguments: tuple[str, ...], says: tuple[str, ...] | str) -> None:
    refuse(*WITHOUT_SIZES, *arguments, says=says)
