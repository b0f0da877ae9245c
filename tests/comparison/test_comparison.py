import json
import shutil
import signal
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from helpers.comparisons import MEASURED, by_key, make_request, run, write_text
from helpers.errors import refused
from smht.comparison import rounds, setting
from smht.comparison.comparison import Outcome
from smht.comparison.loop import Training
from smht.comparison.progress import ComparisonDisplay
from smht.comparison.results import TrialResult
from smht.comparison.search import grid
from smht.comparison.trial import TrialRun
from smht.errors import SmhtError
from smht.training import files
from smht.training.parametrisation import MUP_LEARNING_RATE

pytestmark = pytest.mark.usefixtures("fixed_costs")


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> Outcome:
    """A comparison that nobody disturbed; not to be changed."""
    folder = tmp_path_factory.mktemp("undisturbed")
    with pytest.MonkeyPatch.context() as patches:
        patches.setattr(setting, "measure", lambda *arguments: MEASURED)
        return run(make_request(write_text(folder)), folder / "reference")


@pytest.fixture
def reference(undisturbed: Outcome, tmp_path: Path) -> Outcome:
    """A copy of it."""
    return replace(undisturbed, folder=shutil.copytree(undisturbed.folder, tmp_path / "reference"))


def one_step_slices(patches: pytest.MonkeyPatch) -> None:
    patches.setattr(rounds, "SLICE_SECONDS", 1e-9)


def results_of(outcome: Outcome, purpose: str) -> dict[str, list[TrialResult]]:
    """In the order in which they came to their ends, by variant."""
    names = [variant["name"] for variant in outcome.record["variants"]]
    return {name: [r for r in outcome.results if (r.variant, r.purpose) == (name, purpose)] for name in names}


def test_every_variant_is_searched_alike_and_trained_at_its_best_rate(reference: Outcome) -> None:
    assert reference.status == "finished"
    searches, finals = results_of(reference, "search"), results_of(reference, "final")
    factors = reference.record["search"]["factors"]
    for variant in reference.record["variants"]:
        tried = searches[variant["name"]]
        assert [result.steps for result in tried] == [4] * len(factors)
        assert sorted(r.learning_rate / variant["base_learning_rate"] for r in tried) == pytest.approx(
            factors, rel=1e-3
        )
        best = min(tried, key=lambda result: result.validation_loss or 0)
        assert variant["learning_rate"] == best.learning_rate
        assert [(r.seed, r.steps, r.learning_rate) for r in finals[variant["name"]]] == [
            (seed, 20, best.learning_rate) for seed in (0, 1)
        ]
    assert all(result.peak_memory_bytes == 1_000_000 for result in reference.results)


def test_the_folder_is_whole(reference: Outcome) -> None:
    folder = reference.folder
    assert sorted(path.name for path in folder.iterdir()) == ["comparison.json", "results.jsonl"]
    record = json.loads((folder / "comparison.json").read_text())
    assert record == reference.record
    assert record["asked"]["length"] == {"kind": "tokens", "amount": 640}
    assert [variant["off"] == 0 for variant in record["variants"]] == [True, False]
    assert record["data"]["training"]["tokens"] > 0
    lines = (folder / "results.jsonl").read_text().splitlines()
    assert [json.loads(line)["key"] for line in lines] == [result.key for result in reference.results]


def test_a_finished_comparison_is_read_and_not_made_again(
    text: Path, reference: Outcome, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Training, "step", lambda self: pytest.fail("a step was taken"))
    before = (reference.folder / "results.jsonl").read_bytes()
    again = run(make_request(text), reference.folder)
    assert again.results == reference.results
    assert again.record["variants"] == reference.record["variants"]
    assert (reference.folder / "results.jsonl").read_bytes() == before


def interrupt_after(slices: int, patches: pytest.MonkeyPatch, act: Callable[[], None]) -> None:
    """Call `act` once so many slices have passed."""
    move, count = ComparisonDisplay.move, iter(range(slices))

    def move_and_stop(self: ComparisonDisplay) -> None:
        move(self)
        if next(count, None) is None:
            act()

    patches.setattr(ComparisonDisplay, "move", move_and_stop)


@pytest.mark.parametrize("slices", [0, 40])
def test_an_interrupted_comparison_ends_as_if_it_had_not_been(
    text: Path, tmp_path: Path, reference: Outcome, monkeypatch: pytest.MonkeyPatch, slices: int
) -> None:
    with monkeypatch.context() as patches:
        one_step_slices(patches)
        interrupt_after(slices, patches, lambda: signal.raise_signal(signal.SIGINT))
        stopped = run(make_request(text), tmp_path / "stopped")
        assert stopped.status == stopped.record["status"] == "interrupted"
        assert len(stopped.results) < len(reference.results)
        saved = [path.name for path in (tmp_path / "stopped" / "trials").glob("*/step-*")]
        assert saved and max(saved) > "step-000000"
    taken = count_steps(monkeypatch)
    finished = run(make_request(text), tmp_path / "stopped")
    assert by_key(finished) == by_key(reference)
    assert finished.record["variants"] == reference.record["variants"]
    assert not (tmp_path / "stopped" / "trials").exists()
    total = sum(result.steps for result in reference.results)
    assert len(taken) == total - (slices + 1)  # a slice is a step, and none is taken twice


def count_steps(patches: pytest.MonkeyPatch) -> list[int]:
    """A list that grows with each step of any training."""
    step, taken = Training.step, []

    def count(self: Training) -> float:
        taken.append(self.steps)
        return step(self)

    patches.setattr(Training, "step", count)
    return taken


class Killed(BaseException):
    """Nothing handles it: as much is lost as by a kill."""


@pytest.mark.parametrize("slices", [3, 70])
def test_a_killed_comparison_goes_on_from_its_last_save(
    text: Path, tmp_path: Path, reference: Outcome, monkeypatch: pytest.MonkeyPatch, slices: int
) -> None:
    def die() -> None:
        raise Killed

    with monkeypatch.context() as patches:
        one_step_slices(patches)
        patches.setattr(rounds, "SAVE_SECONDS", 0.0)
        patches.setattr(rounds, "_MOST_SAVING", 1e9)
        interrupt_after(slices, patches, die)
        with pytest.raises(Killed):
            run(make_request(text), tmp_path / "killed")
    taken = count_steps(monkeypatch)
    assert by_key(run(make_request(text), tmp_path / "killed")) == by_key(reference)
    total = sum(result.steps for result in reference.results)
    # Each round of slices was saved, of two trials one step each.
    assert total - (slices + 1) <= len(taken) <= total - (slices + 1) + 2


def test_trials_are_made_side_by_side_in_rotating_order(
    text: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    one_step_slices(monkeypatch)
    turns: list[tuple[str, int]] = []
    advance = TrialRun.advance

    def note(self: TrialRun, seconds: float) -> Any:
        turns.append((self.trial.variant, self.trial.seed))
        return advance(self, seconds)

    monkeypatch.setattr(TrialRun, "advance", note)
    run(make_request(text, variants="split,split+shuffle,dense", rates=1), tmp_path / "folder")
    a, b, c = "split", "split+shuffle", "dense"
    assert turns[:9] == [(name, 0) for name in (a, b, c, b, c, a, c, a, b)]
    assert [seed for _, seed in turns] == [0] * 60 + [1] * 60


def test_more_seeds_and_variants_reuse_what_is_finished(
    text: Path, reference: Outcome, monkeypatch: pytest.MonkeyPatch
) -> None:
    taken = count_steps(monkeypatch)
    more = run(make_request(text, seeds=3), reference.folder)
    assert [result.seed for result in results_of(more, "final")["dense"]] == [0, 1, 2]
    assert len(taken) == 2 * 20
    taken.clear()
    # As many rates as there are by now, so that no edge is new.
    more = run(make_request(text, seeds=3, variants="split+shuffle,dense,split"), reference.folder)
    assert all(
        by_key(more)[key] == result for key, result in by_key(reference).items() if result["purpose"] == "search"
    )
    assert len(results_of(more, "final")["split"]) == 3


def test_finals_at_a_rate_that_is_not_the_best_any_more_are_set_aside(text: Path, reference: Outcome) -> None:
    """As where another variant has made the search wider."""
    results = list(reference.results)
    stale = replace(results[-1], key="old", learning_rate=0.5)
    path = reference.folder / "results.jsonl"
    path.write_text("".join(result.to_json() + "\n" for result in [*results, stale]))
    again = run(make_request(text), reference.folder)
    assert [result.purpose for result in again.results if result.key == "old"] == ["superseded"]
    assert by_key(reference).items() <= by_key(again).items()


def test_a_best_rate_at_the_edge_makes_the_search_wider_for_all(
    text: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    score = TrialRun._evaluate

    def prefer_high_rates(self: TrialRun, windows: int | None) -> Any:
        point = score(self, windows)
        if point is not None and self.trial.variant == "dense":
            point["validation_loss"] = 1 / self.trial.learning_rate
        elif point is not None:
            point["validation_loss"] = abs(self.trial.learning_rate - 0.02)  # the default of both
        return point

    monkeypatch.setattr(TrialRun, "_evaluate", prefer_high_rates)
    outcome = run(make_request(text, seeds=1), tmp_path / "folder")
    low, middle, high = grid(3)
    found = outcome.record["search"]
    assert found["factors"] == pytest.approx([low, middle, high, high * high])
    assert found["chosen"] == {"split+shuffle": middle, "dense": pytest.approx(high * high)}
    assert found["notes"] == [
        "dense did best at the highest rate tried: all variants try one more beyond it",
        "dense did best at the highest of all rates tried: its best rate may lie beyond",
    ]
    assert {name: len(tried) for name, tried in results_of(outcome, "search").items()} == {
        "split+shuffle": 4,
        "dense": 4,
    }


def diverge(patches: pytest.MonkeyPatch, variant: str, above: float) -> None:
    """Trainings of a variant at rates above a number diverge at their third step."""
    advance, step = TrialRun.advance, Training.step
    under_way: list[TrialRun] = []

    def note(self: TrialRun, seconds: float) -> Any:
        under_way[:] = [self]
        return advance(self, seconds)

    def take(self: Training) -> float:
        loss, trial = step(self), under_way[0].trial
        return float("nan") if (trial.variant, self.steps) == (variant, 3) and trial.learning_rate > above else loss

    patches.setattr(TrialRun, "advance", note)
    patches.setattr(Training, "step", take)


def test_a_rate_that_diverges_is_shown_and_the_others_go_on(
    text: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    diverge(monkeypatch, "dense", above=0.013)
    outcome = run(make_request(text), tmp_path / "folder")
    assert outcome.status == "finished"
    searched = {r.learning_rate: r for r in results_of(outcome, "search")["dense"]}
    assert [searched[rate].status for rate in sorted(searched)][-2:] == ["diverged", "diverged"] or len(searched) > 3
    bad = [result for result in searched.values() if result.status == "diverged"]
    assert bad and all(result.error == "the loss became nan at step 3" for result in bad)
    assert all(result.status == "done" for result in results_of(outcome, "final")["dense"])


def test_a_variant_all_of_whose_rates_diverge_has_no_final_training(
    text: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    diverge(monkeypatch, "dense", above=0)
    outcome = run(make_request(text), tmp_path / "folder")
    assert outcome.status == "finished"
    assert results_of(outcome, "final")["dense"] == []
    assert len(results_of(outcome, "final")["split+shuffle"]) == 2
    assert (
        "dense: every rate diverged or failed, so there is no final training of it" in outcome.record["search"]["notes"]
    )
    assert outcome.record["variants"][1]["learning_rate"] is None
    # Diverged trials are finished: they would diverge again.
    monkeypatch.setattr(Training, "step", lambda self: pytest.fail("a step was taken"))
    assert run(make_request(text), tmp_path / "folder").results == outcome.results


@pytest.mark.parametrize("where", [(Training, "step"), (TrialRun, "__init__")])
def test_what_fails_is_recorded_and_made_again_next_time(
    text: Path, tmp_path: Path, reference: Outcome, monkeypatch: pytest.MonkeyPatch, where: tuple[Any, str]
) -> None:
    count, function = iter(range(3)), getattr(*where)

    def fail(self: Any, *arguments: Any) -> Any:
        if next(count, None) is None:
            raise RuntimeError("out of memory\nTraceback")
        return function(self, *arguments)

    with monkeypatch.context() as patches:
        patches.setattr(*where, fail)
        outcome = run(make_request(text, rates=1), tmp_path / "folder")
    statuses = [result.status for result in outcome.results]
    assert "failed" in statuses
    assert {result.error for result in outcome.results if result.status == "failed"} == {"out of memory"}
    again = run(make_request(text, rates=1), tmp_path / "folder")
    assert [result.status for result in again.results] == ["done"] * 4


def test_a_time_is_kept_by_all_and_evaluations_are_no_part_of_it(
    text: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    one_step_slices(monkeypatch)
    outcome = run(make_request(text, budget="time=0.2s", seeds=1, rates=2), tmp_path / "folder")
    for result in outcome.results:
        whole = 0.04 if result.purpose == "search" else 0.2
        assert whole <= result.seconds < whole + 0.5  # a last step on a busy machine
        assert result.curve[-1]["seconds"] == result.seconds


def test_multiplications_in_all_are_as_many_for_each(text: Path, tmp_path: Path) -> None:
    outcome = run(make_request(text, budget="width=16,training-multiplications=50M", rates=1, seeds=1), tmp_path / "f")
    for result in outcome.results:
        assert result.training_multiply_adds == pytest.approx(50e6, rel=0.02)
    assert len({result.steps for result in outcome.results}) == 2


def test_passes_over_a_short_text_are_reported(text: Path, tmp_path: Path) -> None:
    text.write_text("a short text, which is gone through again and again. " * 4)
    outcome = run(make_request(text, rates=1, seeds=1), tmp_path / "folder")
    tokens = outcome.record["data"]["training"]["tokens"]
    assert all(result.repeats == pytest.approx(40 / ((tokens - 1) // 16)) for result in outcome.results)
    assert outcome.results[0].repeats > 3


def test_a_save_that_the_disk_refuses_ends_in_one_line_and_loses_nothing(
    text: Path, tmp_path: Path, reference: Outcome, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_bytes, count = files.write_bytes, iter(range(6))

    def write(path: Path, data: bytes) -> None:
        if next(count, None) is None:
            raise OSError(28, "No space left on device")
        write_bytes(path, data)

    with monkeypatch.context() as patches:
        patches.setattr(files, "write_bytes", write)
        with refused(
            "results.jsonl could not be written: No space left on device",
            "free some space, then give the same command again",
            kind=SmhtError,
        ):
            run(make_request(text), tmp_path / "full")
    assert by_key(run(make_request(text), tmp_path / "full")) == by_key(reference)


def test_two_processes_at_once(text: Path, reference: Outcome) -> None:
    from smht.comparison.folder import ComparisonFolder

    with ComparisonFolder(reference.folder).locked(), refused("is at work in another process"):
        run(make_request(text), reference.folder)


def test_a_disk_that_is_too_small(text: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(files, "free_bytes", lambda path: 1000)
    with refused("of disk and 1 kB are free"):
        run(make_request(text), tmp_path / "folder")
    assert not (tmp_path / "folder").exists()


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"budget": "tokens=1280"}, "was begun with length.amount = 640, not 1280"),
        ({"budget": "time=2m"}, "was begun with length.kind = tokens, not time"),
        ({"budget": "width=16,tokens=640"}, "was begun with size.kind = parameters, not width"),
        ({"batch_size": 4}, "batch_size = 2, not 4"),
        ({"rates": 5}, "rates = 3, not 5"),
        ({"search_share": 1.0}, "search_share = 0.2, not 1.0"),
        ({"context": 8}, "context = 16, not 8"),
        ({"tokenizer": "char"}, "tokenizer.kind = byte, not char"),
        ({"solve_depth": True}, "solve_depth = False, not True"),
        ({"validation_fraction": 0.2}, "another training text"),
        ({"variants": "split+shuffle,split"}, "compares dense too: name all of its variants"),
        ({"variants": "dense,split+shuffle"}, "size.amount"),
        ({"seeds": 1}, "has seed 1 too"),
        ({"seed": 1}, "has seed 0 too"),
    ],
)
def test_another_request_in_the_same_folder(text: Path, reference: Outcome, changes: dict[str, Any], says: str) -> None:
    before = {path.name: path.read_bytes() for path in reference.folder.iterdir()}
    with refused("reference", says):
        run(make_request(text, **changes), reference.folder)
    assert {path.name: path.read_bytes() for path in reference.folder.iterdir()} == before


def test_another_parametrisation_is_another_comparison(text: Path, reference: Outcome, tmp_path: Path) -> None:
    with refused("was begun with parametrisation = standard, not mup"):
        run(make_request(text, parametrisation="mup"), reference.folder)
    other = run(make_request(text, parametrisation="mup", rates=1, seeds=1), tmp_path / "mup")
    assert other.record["asked"]["parametrisation"] == "mup"
    assert {variant["learning_rate"] for variant in other.record["variants"]} == {MUP_LEARNING_RATE}
    assert not by_key(other).keys() & by_key(reference).keys()
