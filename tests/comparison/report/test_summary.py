import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from helpers.errors import refused
from helpers.made_up_comparisons import RATES, FakeComparison, trial_row
from smht.comparison.report import summarise

stats = pytest.importorskip("scipy.stats")

DENSE = (1.720, 1.719, 1.706)
SHUFFLE = (1.709, 1.703, 1.692)
TWO = ("dense", "split+shuffle")


def summary_of(tmp_path: Path, losses: dict[str, tuple[float, ...]], **changes: Any) -> Any:
    seeds = range(len(next(iter(losses.values()))))
    return summarise(FakeComparison(list(losses), seeds, losses, changes).write(tmp_path))


def sentence_of(tmp_path: Path, losses: dict[str, tuple[float, ...]], **changes: Any) -> str:
    [sentence] = summary_of(tmp_path, losses, **changes).sentences
    return sentence


def test_a_clear_difference_is_a_sentence(tmp_path: Path) -> None:
    difference = np.subtract(DENSE, SHUFFLE)
    half = stats.sem(difference) * stats.t.isf(0.025, 2)
    assert half < difference.mean()
    expected = f"{difference.mean():.4f} ± {half:.4f}"
    assert sentence_of(tmp_path, {"dense": DENSE, "split+shuffle": SHUFFLE}) == (
        f"At equal parameters and tokens, split+shuffle beats dense by {expected} nats (3 seeds, paired)."
    )


def test_the_winner_is_the_one_with_the_lower_loss(tmp_path: Path) -> None:
    sentence = sentence_of(tmp_path, {"split": DENSE, "dense": SHUFFLE})
    assert "dense beats split by 0.0137 ± 0.0063 nats" in sentence


def test_an_interval_with_zero_in_it_tells_nothing(tmp_path: Path) -> None:
    sentence = sentence_of(tmp_path, {"dense": (1.70, 1.71, 1.72), "split": (1.71, 1.69, 1.725)})
    assert sentence.startswith("split against dense: no difference can be told: −0.002 ± 0.040 nats (3 seeds, paired)")
    assert "beats" not in sentence


def test_one_seed_claims_no_interval(tmp_path: Path) -> None:
    found = summary_of(tmp_path, {"dense": (1.72,), "split": (1.5,)})
    assert found.sentences == ("split against dense: no difference can be told: −0.2200 nats, one seed: no interval.",)
    assert "dense, split: one seed: no interval." in found.notes
    assert all(outcome.loss.half_width is None for outcome in found.outcomes)


def test_more_variants_need_clearer_differences(tmp_path: Path) -> None:
    close = (1.699, 1.705, 1.692)
    alone = summary_of(tmp_path, {"dense": DENSE, "a": close})
    p_value = stats.ttest_rel(DENSE, close).pvalue
    assert 0.0125 < p_value < 0.05
    assert "a beats dense" in alone.sentences[0]
    others = dict.fromkeys("bcd", (1.73, 1.7, 1.71))
    among = summary_of(tmp_path, {"dense": DENSE, "a": close, **others})
    assert "no difference can be told among 4 comparisons: −0.016 ± 0.010 nats" in among.sentences[0]
    assert f"p = {4 * p_value:.3g} after Holm's correction" in among.sentences[0]


@pytest.mark.parametrize(
    ("size", "length", "words"),
    [
        ({"kind": "multiplications", "amount": 2e6}, {"kind": "time", "amount": 120}, "multiplications a token and"),
        ({"kind": "width", "amount": 256}, {"kind": "training-multiplications", "amount": 3e12}, "width and training"),
        (None, {"kind": "tokens", "amount": 1e6}, "At equal tokens, "),
        (None, None, "At equal budgets, "),
    ],
)
def test_the_sentence_names_the_budgets(tmp_path: Path, size: Any, length: Any, words: str) -> None:
    losses = {"dense": DENSE, "split+shuffle": SHUFFLE}
    assert words in sentence_of(tmp_path, losses, asked={"size": size, "length": length})


def test_budgets_that_are_not_equal_are_not_called_so(tmp_path: Path) -> None:
    comparison = FakeComparison(TWO, (0, 1, 2), {"dense": DENSE, "split+shuffle": SHUFFLE})
    rows = [row | ({"parameters": 900_000} if row["variant"] == "dense" else {}) for row in comparison.finals()]
    found = summarise(comparison.write(tmp_path, rows))
    assert "At equal parameters (within 11%) and tokens" in found.sentences[0]
    [note] = [note for note in found.notes if "equal within" in note]
    assert "parameters are equal within 11% only" in note and "900k in dense" in note
    rows = [row | {"seconds": 103.0 if row["variant"] == "dense" else 100.0} for row in comparison.finals()]
    timed = FakeComparison(TWO, changes={"asked": {"length": {"kind": "time", "amount": 100}}})
    [note] = [note for note in summarise(timed.write(tmp_path, rows)).notes if "equal within" in note]
    assert note == "The training time is equal within 2.9% only: 100 s in split+shuffle to 103 s in dense."


def test_a_budget_that_all_meet_needs_no_mention(tmp_path: Path) -> None:
    comparison = FakeComparison(TWO, (0, 1, 2), {"dense": DENSE, "split+shuffle": SHUFFLE})
    sizes = {"dense": 807_000, "split+shuffle": 793_500}  # each within 1% of 800,000
    rows = [row | {"parameters": sizes[row["variant"]]} for row in comparison.finals()]
    found = summarise(comparison.write(tmp_path, rows))
    assert "At equal parameters and tokens, " in found.sentences[0]
    assert not any("equal within" in note for note in found.notes)


def test_dense_is_the_reference_wherever_it_stands(tmp_path: Path) -> None:
    found = summarise(FakeComparison(("split", "dense", "split+shuffle")).write(tmp_path))
    assert found.reference == "dense"
    assert [(d.variant, d.reference) for d in found.differences] == [("split", "dense"), ("split+shuffle", "dense")]
    assert len(found.pairs) == 3


def test_without_dense_the_first_is_the_reference(tmp_path: Path) -> None:
    assert summarise(FakeComparison(("b", "a")).write(tmp_path)).reference == "b"


def test_means_and_intervals_are_numpys(tmp_path: Path) -> None:
    comparison = FakeComparison()
    found = summarise(comparison.write(tmp_path))
    for outcome in found.outcomes:
        losses = np.array([comparison.loss(outcome.variant, seed) for seed in comparison.seeds])
        low, high = stats.t.interval(0.95, 2, losses.mean(), stats.sem(losses))
        assert outcome.loss.mean == pytest.approx(losses.mean())
        assert [outcome.loss.low, outcome.loss.high] == pytest.approx([low, high])
        assert outcome.bits_per_byte.mean == pytest.approx(losses.mean() / math.log(2))
        assert outcome.mean(lambda trial: trial.seconds) == pytest.approx(outcome.finals[0].seconds)


def test_the_best_rate_and_its_edges(tmp_path: Path) -> None:
    def search(name: str, losses: tuple[float | None, ...]) -> list[dict[str, Any]]:
        return [trial_row(name, "search", 0, loss, rate) for rate, loss in zip(RATES, losses, strict=True)]

    rows = [
        *search("inside", (1.9, 1.8, 1.7, 1.8, 1.9)),
        *search("low", (1.6, 1.8, 1.9, 2.0, 2.1)),
        *search("high", (1.9, 1.8, 1.7, 1.6, 1.5)),
        *search("before divergence", (1.9, 1.8, 1.7, 1.6, None)),
        *search("hopeless", (None,) * 5),
    ]
    names = list(dict.fromkeys(row["variant"] for row in rows))
    found = summarise(FakeComparison(names).write(tmp_path, rows))
    searches = {outcome.variant: outcome.search for outcome in found.outcomes}
    assert [search.best for search in searches.values()] == [2, 0, 4, 3, None]
    assert [search.edge for search in searches.values()] == [None, "lowest", "highest", None, None]
    assert searches["before divergence"].failures == ("", "", "", "", "diverged")
    assert any("low (lowest), high (highest)" in note for note in found.notes)
    assert any(note.startswith("hopeless: every learning rate failed or diverged") for note in found.notes)


def test_searches_of_unequal_effort_are_said(tmp_path: Path) -> None:
    comparison = FakeComparison()
    rows = [*comparison.searches()[1:], *comparison.finals()]
    found = summarise(comparison.write(tmp_path, rows))
    assert any("not of equal effort (yet): trials 4 for dense, 5 for split" in note for note in found.notes)
    assert not any("equal effort" in note for note in summarise(comparison.write(tmp_path)).notes)


def test_failed_seeds_are_left_out_and_said(tmp_path: Path) -> None:
    comparison = FakeComparison(TWO, (0, 1, 2), {"dense": DENSE, "split+shuffle": SHUFFLE})
    rows = comparison.finals()
    rows[0] |= {"status": "diverged", "validation_loss": None, "error": "the loss became nan"}
    found = summarise(comparison.write(tmp_path, rows))
    assert [trial.error for trial in found.failures] == ["the loss became nan"]
    assert found.differences[0].seeds == (1, 2)
    assert found.sentences[0].endswith("(2 seeds, paired); 1 of 3 trials of dense diverged and cannot count.")
    assert "Of 6 trials 1 diverged: see Failures." in found.notes


def test_an_unfinished_comparison_says_what_is_missing(tmp_path: Path) -> None:
    comparison = FakeComparison()
    found = summarise(comparison.write(tmp_path, [*comparison.searches(), *comparison.finals()[:4]]))
    assert [outcome.missing for outcome in found.outcomes] == [(2,), (1, 2), (1, 2)]
    assert any(
        "5 final trials are missing (1 of dense, 2 of split, 2 of split+shuffle)" in note for note in found.notes
    )


def test_finals_at_a_rate_that_was_replaced_do_not_count(tmp_path: Path) -> None:
    comparison = FakeComparison(("split",), (0, 1))
    old = [trial_row("split", "final", seed, 9.0, 1e-3) for seed in (0, 1)]
    marked = [trial_row("split", "superseded", 0, 9.0, 2e-3)]
    found = summarise(comparison.write(tmp_path, [*old, *marked, trial_row("split", "final", 0, 1.5, 5e-3)]))
    [outcome] = found.outcomes
    assert outcome.losses == {0: 1.5}
    assert outcome.missing == (1,)
    assert "3 final trials at a learning rate that was replaced later: not counted." in found.notes


def test_repeats_and_unlike_machines_are_said(tmp_path: Path) -> None:
    comparison = FakeComparison(TWO)
    rows = comparison.finals()
    rows[0] |= {"repeats": 7.31, "threads": 8}
    notes = summarise(comparison.write(tmp_path, rows)).notes
    assert any("seen up to 7.31 times" in note for note in notes)
    assert any("cpu with 2 threads, cpu with 8 threads" in note for note in notes)
    once = [row | {"repeats": 0.4} for row in comparison.finals()]
    assert summarise(comparison.write(tmp_path, once)).notes == ()


def test_a_torn_line_is_said(tmp_path: Path) -> None:
    folder = FakeComparison().write(tmp_path)
    path = folder / "results.jsonl"
    path.write_text(path.read_text()[:-300])
    found = summarise(folder)
    said = "Line 24 of results.jsonl, the last, was cut short: the same command makes its trial again."
    assert said in found.notes
    assert found.outcomes[-1].missing == (2,)


def test_the_dictionary_is_json_without_curves_and_nan(tmp_path: Path) -> None:
    comparison = FakeComparison()
    rows = comparison.finals()
    rows[0] |= {"validation_loss": float("nan"), "tokens_per_second": float("inf")}
    found = summarise(comparison.write(tmp_path, rows)).to_dict()
    again = json.loads(json.dumps(found, allow_nan=False))
    assert again == found
    assert [variant["variant"] for variant in again["variants"]] == list(comparison.variants)
    assert again["failures"][0]["validation_loss"] is None
    assert "curve" not in again["failures"][0]


@pytest.mark.parametrize(
    ("text", "needle"),
    [
        (None, "holds no comparison: it has no comparison.json"),
        ("{", "comparison.json is damaged"),
        ("[]", "it is no record of a comparison"),
        ('{"asked": {}, "variants": [{}], "seeds": []}', "it is no record of a comparison"),
        ('{"asked": {}, "variants": [{"name": "a"}], "seeds": ["x"]}', "damaged"),
        ('{"asked": {"size": {"kind": "width"}}, "variants": [], "seeds": []}', "no record of a comparison"),
    ],
)
def test_folders_without_a_comparison_are_refused(tmp_path: Path, text: str | None, needle: str) -> None:
    if text is not None:
        (tmp_path / "comparison.json").write_text(text)
    with refused(str(tmp_path), needle):
        summarise(tmp_path)


def test_a_folder_that_is_not_there_is_refused(tmp_path: Path) -> None:
    with refused("there is no folder", "nowhere"):
        summarise(tmp_path / "nowhere")
