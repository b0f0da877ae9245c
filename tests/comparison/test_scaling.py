import json
import signal
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from helpers.comparisons import make_request, without_time
from helpers.errors import refused
from smht.comparison import rounds
from smht.comparison.budget import Budget, parse_length, parse_sizes
from smht.comparison.loop import Training
from smht.comparison.progress import ComparisonDisplay
from smht.comparison.scaling import Climbed, ScalingRequest, climb

pytestmark = pytest.mark.usefixtures("fixed_costs")

SIZES = "5k,7k,10k,14k"
DENSE = "dense"


def make_ladder(text: Path, sizes: str = SIZES, **changes: Any) -> ScalingRequest:
    """Two variants at four sizes, two seeds, one rate, ten steps of two windows."""
    search_at = changes.pop("search_at", "every")
    asked = {"budget": "parameters=1M,tokens=320", "seeds": 2, "rates": 1, **changes}
    comparison = make_request(text, **asked)
    comparison = replace(comparison, budget=Budget(None, comparison.budget.length))
    return ScalingRequest(comparison, parse_sizes([sizes], 4), search_at)


def run(request: ScalingRequest, folder: Path) -> Climbed:
    return climb(request, folder, Console(quiet=True))


def by_key(climbed: Climbed) -> dict[str, dict[str, Any]]:
    return {result.key: without_time(result) for outcome in climbed.outcomes for result in outcome.results}


def test_each_size_is_a_comparison(text: Path, tmp_path: Path) -> None:
    climbed = run(make_ladder(text), tmp_path / "ladder")
    assert climbed.status == "finished"
    sizes = [outcome.record["asked"]["size"]["amount"] for outcome in climbed.outcomes]
    assert sizes == [5_000, 7_000, 10_000, 14_000]
    for outcome, size in zip(climbed.outcomes, sizes, strict=True):
        assert outcome.folder == tmp_path / "ladder" / f"sizes/parameters-{size}"
        assert sorted((r.variant, r.seed, r.steps) for r in outcome.results) == [
            (name, seed, 10) for name in (DENSE, "split+shuffle") for seed in (0, 1)
        ]
        assert all(abs(result.parameters / size - 1) < 0.1 for result in outcome.results)
    lines = (tmp_path / "ladder/results.jsonl").read_text().splitlines()
    assert {json.loads(line)["key"] for line in lines} == by_key(climbed).keys() and len(lines) == 16
    record = json.loads((tmp_path / "ladder/scaling.json").read_text())
    assert record["status"] == "finished"
    assert record["asked"]["sizes"][0] == {"kind": "parameters", "amount": 5000, "folder": "sizes/parameters-5000"}


def test_what_is_finished_is_not_made_again_and_a_ladder_grows(
    text: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = by_key(run(make_ladder(text), tmp_path / "ladder"))
    steps: list[int] = []
    step = Training.step

    def count(self: Training) -> float:
        steps.append(self.steps)
        return step(self)

    monkeypatch.setattr(Training, "step", count)
    assert by_key(run(make_ladder(text), tmp_path / "ladder")) == before
    assert not steps
    grown = by_key(run(make_ladder(text, f"{SIZES},20k"), tmp_path / "ladder"))
    assert before.items() <= grown.items() and len(grown) == 20 and len(steps) == 40
    record = tmp_path / "ladder/scaling.json"
    said = record.read_text()
    for sizes in (SIZES, "6k,8k,12k,16k"):  # fewer, and another ladder's
        with refused("has the size", "name all of its sizes, or another --output"):
            run(make_ladder(text, sizes), tmp_path / "ladder")
    assert record.read_text() == said
    record.write_text("{")
    with refused("scaling.json is damaged", "name another --output"):
        run(make_ladder(text, f"{SIZES},20k"), tmp_path / "ladder")


def test_an_interrupted_ladder_ends_as_if_it_had_not_been(
    text: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rounds, "SLICE_SECONDS", 1e-9)
    whole = run(make_ladder(text), tmp_path / "whole")
    move, moves = ComparisonDisplay.move, iter(range(55))

    def move_and_stop(self: ComparisonDisplay) -> None:
        move(self)
        if next(moves, None) is None:
            signal.raise_signal(signal.SIGINT)

    with monkeypatch.context() as patches:
        patches.setattr(ComparisonDisplay, "move", move_and_stop)
        stopped = run(make_ladder(text), tmp_path / "stopped")
    assert stopped.status == "interrupted"
    assert [outcome.status for outcome in stopped.outcomes] == ["finished", "interrupted"]
    assert json.loads((tmp_path / "stopped/scaling.json").read_text())["status"] == "interrupted"
    assert by_key(run(make_ladder(text), tmp_path / "stopped")) == by_key(whole)


def test_rates_are_tried_at_every_size_or_at_the_smallest(text: Path, tmp_path: Path) -> None:
    every = run(make_ladder(text, rates=2, seeds=1), tmp_path / "every")
    for outcome in every.outcomes:
        assert sum(result.purpose == "search" for result in outcome.results) >= 4
    smallest = run(make_ladder(text, rates=2, seeds=1, search_at="smallest"), tmp_path / "smallest")
    first, *others = smallest.outcomes
    chosen = first.record["search"]["chosen"]
    assert set(chosen.values()) != {1.0}
    for outcome in others:
        assert all(result.purpose == "final" for result in outcome.results)
        for variant in outcome.record["variants"]:
            expected = chosen[variant["name"]] * variant["base_learning_rate"]
            assert variant["learning_rate"] == pytest.approx(expected, rel=1e-3)


def test_under_mup_all_sizes_begin_from_one_rate(text: Path, tmp_path: Path) -> None:
    climbed = run(make_ladder(text, parametrisation="mup", seeds=1), tmp_path / "ladder")
    records = [outcome.record for outcome in climbed.outcomes]
    assert all(record["asked"]["parametrisation"] == "mup" for record in records)
    assert len({v["base_learning_rate"] for record in records for v in record["variants"]}) == 1


def test_tokens_are_a_ratio_of_parameters_unless_a_length_is_given(text: Path, tmp_path: Path) -> None:
    request = make_ladder(text, seeds=1, tokens_per_parameter=0.05)
    request = replace(request, comparison=replace(request.comparison, budget=Budget(None, None)))
    for outcome in run(request, tmp_path / "ladder").outcomes:
        first = outcome.results[0]
        assert first.tokens == pytest.approx(0.05 * first.parameters, abs=32)
        assert all(result.tokens == first.tokens for result in outcome.results)


@pytest.mark.parametrize(
    ("texts", "says"),
    [
        (["5k,7k,10k"], ("at least 4 sizes, not 3", "--sizes such as")),
        ([], ("at least 4 sizes, not 0",)),
        (["5k,7k,10k,5000"], ("5,000 parameters", "is there twice")),
        (["params=5k,7k,10k,14k"], ("cannot be of 'params'", "parameters")),
        (["5k,7k,width=10,14k"], ("sizes are of one kind, parameters",)),
        (["5k,7k,10k,x"], ("parameters=x is no amount",)),
    ],
)
def test_sizes_that_make_no_ladder(texts: list[str], says: tuple[str, ...]) -> None:
    with refused(*says):
        parse_sizes(texts, 4)


def test_sizes_in_any_order_and_of_any_kind() -> None:
    assert [limit.amount for limit in parse_sizes(["10k,5k", "7k"], 3)] == [5_000, 7_000, 10_000]
    assert {limit.kind for limit in parse_sizes(["multiplications=5k,7k"], 2)} == {"multiplications"}


def test_a_length_and_no_size() -> None:
    assert parse_length([]) == Budget(None, None)
    with refused("leave the budget width out"):
        parse_length(["width=64,tokens=5"])


@pytest.mark.parametrize(
    ("sizes", "says"),
    [
        ("100,7k,10k,14k", ("no width gives split+shuffle 100 parameters", "the nearest is")),
        ("9990,10k,14k,20k", ("make split+shuffle of width", "sizes farther apart")),
    ],
)
def test_sizes_that_no_models_have(text: Path, tmp_path: Path, sizes: str, says: tuple[str, ...]) -> None:
    with refused(*says):
        run(make_ladder(text, sizes), tmp_path / "ladder")
    assert not (tmp_path / "ladder").exists()


def test_the_folder_of_something_else(text: Path, tmp_path: Path) -> None:
    run(make_ladder(text, seeds=1), tmp_path / "ladder")
    with refused("sizes/parameters-5000 was begun with length.amount = 320, not 640"):
        run(make_ladder(text, seeds=1, budget="parameters=1M,tokens=640"), tmp_path / "ladder")
    with refused("holds something else than a ladder of sizes"):
        run(make_ladder(text), tmp_path)
