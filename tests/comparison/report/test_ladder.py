import json
from collections.abc import Mapping
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from helpers.errors import refused
from helpers.made_up_comparisons import FakeComparison, trial_row
from helpers.pages import addresses, parse_page
from smht.comparison.budget import Limit
from smht.comparison.report import ladder as ladder_module
from smht.comparison.report import tell_crossings, write_ladder_report
from smht.comparison.report.ladder import read_ladder
from smht.comparison.scaling_law import PowerLaw

pytest.importorskip("scipy")
pytest.importorskip("matplotlib")

SIZES = (50_000, 100_000, 200_000, 400_000, 800_000)
DENSE, SPLIT = "dense", "split+shuffle"
LAWS = {DENSE: PowerLaw(1.5, np.log(2000.0), 0.7), SPLIT: PowerLaw(1.52, np.log(400.0), 0.6)}
"""They cross at about 1.3 million."""


@pytest.fixture(autouse=True)
def few_replicates(monkeypatch: pytest.MonkeyPatch) -> None:
    """A twentieth of the bootstrap does for what is tested here."""
    monkeypatch.setattr(ladder_module, "REPLICATES", 20)


def write_ladder(
    folder: Path,
    sizes: tuple[int, ...] = SIZES,
    seeds: tuple[int, ...] = (0, 1, 2),
    asked: Mapping[str, Any] | None = None,
    without: tuple[tuple[str, int], ...] = (),
    noise: float = 2e-3,
) -> Path:
    """A ladder that never ran, with losses of `LAWS`; the trials in `without` have diverged."""
    random = np.random.default_rng(0)
    for size in sizes:
        rows = []
        for name, law in LAWS.items():
            for seed in seeds:
                loss = float(law.loss(size)) * (1 + noise * random.standard_normal())
                gone = (name, size) in without
                costs = {"parameters": size, "multiply_adds_per_token": size, "training_multiply_adds": 60 * size**2}
                rows.append(trial_row(name, "final", seed, None if gone else loss, 3e-3, **costs))
        comparison = FakeComparison(variants=tuple(LAWS), seeds=seeds)
        comparison.write(folder / f"sizes/parameters-{size}", rows)
    record = {
        "smht": "0.1",
        "command": ["smht", "scaling", "my text.txt"],
        "status": "finished",
        "asked": {
            "sizes": [{**asdict(Limit("parameters", n)), "folder": f"sizes/parameters-{n}"} for n in SIZES],
            "length": None,
            "tokens_per_parameter": 20.0,
            "search_at": "every",
            "variants": list(LAWS),
            "seeds": list(seeds),
            **(asked or {}),
        },
    }
    (folder / "scaling.json").write_text(json.dumps(record))
    return folder


def written(folder: Path) -> tuple[str, str]:
    """The report as Markdown and as a page, both checked."""
    write_ladder_report(folder)
    markdown, text = ((folder / name).read_text(encoding="utf-8") for name in ("report.md", "report.html"))
    assert addresses(parse_page(text)) == {"data:,"}
    pictures = {line.partition("](")[2][:-1] for line in markdown.splitlines() if line.startswith("![")}
    figures = folder / "figures"
    assert {f"figures/{path.name}" for path in figures.glob("*")} == pictures
    return markdown, text


def crossing_of(laws: dict[str, PowerLaw]) -> float:
    """By halving; independent of the code under test."""
    low, high = 1e5, 1e8

    def gap(size: float) -> float:
        return float(laws[SPLIT].loss(size) - laws[DENSE].loss(size))

    assert gap(low) < 0 < gap(high)
    for _ in range(100):
        middle = (low * high) ** 0.5
        low, high = (middle, high) if gap(middle) < 0 else (low, middle)
    return low


def test_a_ladder_gives_back_its_laws_and_where_they_cross(tmp_path: Path) -> None:
    ladder = read_ladder(write_ladder(tmp_path, noise=1e-4))
    parameters, compute = ladder.laws
    for name, law in LAWS.items():
        fit = parameters.fits[name]
        for factor in (1, 10):
            size = factor * SIZES[-1]
            assert fit.loss(size).value == pytest.approx(float(law.loss(size)), rel=0.01)
        assert fit.exponent.low < fit.exponent.value < fit.exponent.high
        # Compute grows as the square of the size, so the exponent is half.
        assert compute.fits[name].law.exponent == pytest.approx(fit.law.exponent / 2, rel=0.02)
    assert ladder.reference == DENSE
    (crossing,) = parameters.crossings
    assert (crossing.worse, crossing.better) == (DENSE, SPLIT)
    assert crossing.size == pytest.approx(crossing_of(LAWS), rel=0.1)
    assert crossing.low <= crossing.size <= crossing.high
    (told,) = tell_crossings(ladder)
    assert told.is_marked and "the law of split+shuffle lies below that of dense" in told.text


def test_the_largest_size_is_foretold_from_the_others(tmp_path: Path) -> None:
    ladder = read_ladder(write_ladder(tmp_path))
    for each in ladder.foretold:
        assert each.measured == pytest.approx(float(LAWS[each.variant].loss(SIZES[-1])), rel=0.01)
        assert each.loss.value == pytest.approx(each.measured, rel=0.02)
        assert each.loss.low < each.loss.value < each.loss.high
    assert [each.variant for each in ladder.foretold] == list(LAWS)


def test_a_whole_report(tmp_path: Path) -> None:
    markdown, text = written(write_ladder(tmp_path))
    assert sorted(path.stem for path in (tmp_path / "figures").iterdir()) == ["laws-compute", "laws-parameters"]
    for needle in ("Laws over parameters", "95% interval", "8M (10×)", "A check: the loss at 800,000 parameters"):
        assert needle in markdown and needle in text
    assert "smht scaling 'my text.txt'" in markdown
    assert sum(line.startswith("| 50,000 |") for line in markdown.splitlines()) == 2
    assert written(tmp_path) == (markdown, text)


def test_one_seed_claims_no_interval(tmp_path: Path) -> None:
    folder = write_ladder(tmp_path, seeds=(0,))
    markdown, _ = written(folder)
    assert "One seed: no interval is claimed" in markdown and "one seed: no interval" in markdown
    tables = [line for line in markdown.splitlines() if line.startswith("|")]
    assert not any("\\[" in line for line in tables)
    values = read_ladder(folder).to_dict()
    for fit in values["laws"]["parameters"]["fits"].values():
        assert fit["exponent"]["value"] > 0 and fit["exponent"]["low"] is None
    assert not any(cell.is_marked for cell in tell_crossings(read_ladder(folder)))


def test_too_few_results_make_no_law(tmp_path: Path) -> None:
    without = tuple((DENSE, size) for size in SIZES[:2])
    ladder = read_ladder(write_ladder(tmp_path, without=without))
    assert dict(ladder.unfitted) == {DENSE: 3}
    assert list(ladder.laws[0].fits) == [SPLIT] and not ladder.laws[0].crossings
    markdown, _ = written(tmp_path)
    assert "dense: no law, since 3 sizes have a result" in markdown
    assert "diverged" in markdown


@pytest.mark.parametrize("count", [0, 2])
def test_an_unfinished_ladder(tmp_path: Path, count: int) -> None:
    tmp_path.joinpath("ladder").mkdir()
    markdown, _ = written(write_ladder(tmp_path / "ladder", SIZES[:count]))
    assert "Not begun yet:" in markdown and "800,000 parameters" in markdown
    assert "No variant has results at 4 sizes yet" in markdown


def test_laws_that_never_cross(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(LAWS, SPLIT, PowerLaw(1.4, np.log(1500.0), 0.7))
    ladder = read_ladder(write_ladder(tmp_path, noise=1e-4))
    (told,) = tell_crossings(ladder)
    assert told.is_marked and "and stays there up to" in told.text and "100% agree" in told.text
    parameters, *others = ladder.laws
    # No sample crosses, but in two of five the other variant is ahead from the smallest size on.
    unsure = replace(parameters, crossings=(replace(parameters.crossings[0], share=0.0, stays=0.6),))
    (told,) = tell_crossings(replace(ladder, laws=(unsure, *others)))
    assert not told.is_marked and told.text.startswith("Whether and where the laws cross cannot be told")
    assert "60% agree" in told.text


def test_numbers_are_json(tmp_path: Path) -> None:
    values = read_ladder(write_ladder(tmp_path)).to_dict()
    again = json.loads(json.dumps(values, allow_nan=False))
    assert [size["amount"] for size in again["sizes"]] == list(SIZES)
    assert len(again["comparisons"]) == len(SIZES)


@pytest.mark.parametrize("text", ["{", "{}", '{"asked": {"sizes": [1]}}', "[]"])
def test_a_damaged_record(tmp_path: Path, text: str) -> None:
    write_ladder(tmp_path, ())
    (tmp_path / "scaling.json").write_text(text)
    with refused("scaling.json is damaged"):
        read_ladder(tmp_path)


def test_a_folder_without_a_ladder(tmp_path: Path) -> None:
    with refused("holds no ladder of sizes"):
        read_ladder(tmp_path)
