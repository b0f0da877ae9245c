from pathlib import Path
from typing import Any

import pytest

from helpers.comparisons import MEASURED, make_request
from helpers.errors import refused
from smht.comparison.setting import Setting, prepare


def measured(setting: Setting) -> dict[str, Any]:
    return {solved.variant.name: MEASURED for solved in setting.solved}


def test_without_a_size_it_is_that_of_the_first_variant(text: Path) -> None:
    setting = prepare(make_request(text, variants="dense,split"))
    assert setting.size.kind == "parameters"
    assert setting.solved[0].config.hidden_size == 16
    assert setting.solved[0].cost == setting.size.amount
    assert setting.solved[1].config.hidden_size > 16


def test_without_a_length_it_is_twenty_tokens_a_parameter(text: Path) -> None:
    setting = prepare(make_request(text, budget="parameters=20k"))
    assert setting.length.kind == "tokens"
    assert setting.length.amount == 20 * setting.solved[0].cost


def test_all_variants_have_one_tokenizer_and_the_context(text: Path) -> None:
    setting = prepare(make_request(text, tokenizer="char", context=12))
    for solved in setting.solved:
        assert solved.config.vocab_size == len(setting.tokenizer)
        assert solved.config.max_position_embeddings == setting.context == 12


def test_a_trial_of_the_search_is_a_fifth_as_long(text: Path) -> None:
    for budget, name in (("tokens=640", "steps"), ("time=10s", "seconds")):
        setting = prepare(make_request(text, budget=budget))
        search, final = setting.search_trials(1.0)[0], setting.final_trials(0, {"split+shuffle": 0.1})[0]
        assert getattr(final, name) == 5 * getattr(search, name)
        assert (search.evaluations, final.evaluations) == (1, 10)


@pytest.mark.parametrize(("share", "steps"), [(1.0, 20), (0.5, 10), (0.01, 1)])
def test_rates_can_be_tried_for_longer(text: Path, share: float, steps: int) -> None:
    setting = prepare(make_request(text, budget="tokens=640", search_share=share))
    search, final = setting.search_trials(1.0)[0], setting.final_trials(0, {"split+shuffle": 0.1})[0]
    assert (search.steps, final.steps) == (steps, 20)


def test_a_variant_without_a_rate_has_no_final_training(text: Path) -> None:
    setting = prepare(make_request(text))
    assert [trial.variant for trial in setting.final_trials(0, {"dense": 0.1})] == ["dense"]


@pytest.mark.parametrize(
    ("budget", "windows"),
    [
        ("tokens=32k", 133),  # 2,000 windows to learn from; at 9 points, each of which costs a third of that a window
        ("tokens=32", 16),
        ("tokens=1M", None),
        ("time=9s", 200),
        ("time=1s", 22),
        ("time=0.001", 16),
    ],
)
def test_evaluations_cost_a_fifth_of_the_training(text: Path, budget: str, windows: int | None) -> None:
    text.write_text("abc " * 10_000)
    setting = prepare(make_request(text, budget=budget, batch_size=2 if "tokens" in budget else 1))
    assert setting.examples.validation_items == 250
    assert setting.evaluation_windows(measured(setting)) == windows


def test_what_a_trial_will_take(text: Path) -> None:
    text.write_text("abc " * 10_000)
    setting = prepare(make_request(text))
    (search, _), (final, _) = setting.search_trials(1.0), setting.final_trials(0, {"split+shuffle": 0.1, "dense": 0.1})
    assert setting.expected_seconds(search, MEASURED, 20) == pytest.approx(0.004 + 0.25)
    assert setting.expected_seconds(final, MEASURED, 20) == pytest.approx(0.020 + 9 * 0.02 + 0.25)
    assert setting.expected_seconds(final, MEASURED, None) == pytest.approx(0.020 + 10 * 0.25)


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"budget": "tokens=10"}, ("10 tokens to learn from is less than one step of split+shuffle, 32",)),
        ({"budget": "training-multiplications=10"}, ("less than one step of split+shuffle", "--batch-size")),
        ({"budget": "tokens=1e20"}, ("3,125,000,000,000,000,000 steps, more than",)),
        ({"budget": "parameters=10,tokens=64"}, ("no width gives split+shuffle 10 parameters", "nearest is")),
        ({"budget": "parameters=100T,tokens=64"}, ("need at least", "of memory", "take a smaller model")),
        ({"variants": "split,split+shuffle+H=1"}, ("variant split+shuffle+H=1", "there is one head")),
        ({"variants": "split,dense,split+rotary"}, ("variants split and split+rotary are the same model here",)),
        ({"variants": "split+shuffle+H=2,split+shuffle"}, ("split+shuffle+H=2 and split+shuffle are the same",)),
        ({"context": 10_000}, ("tokens, fewer than one block of 10001", "smaller --context")),
        ({"context": 1}, ("context = 1 must be at least 2",)),
        ({"tokenizer": "byte", "vocab_size": 300}, ("vocab_size 300",)),
        ({"preset": "smht-smal"}, ("did you mean smht-small",)),
        ({"architecture": {"stack": "encoder"}}, ("stack = 'encoder' does not serve",)),
        ({"preset": "smht-mini", "architecture": {"hidden_size": 15}}, ("hidden_size = 15",)),
    ],
)
def test_what_cannot_be_compared(text: Path, changes: dict[str, Any], says: tuple[str, ...]) -> None:
    with refused(*says):
        prepare(make_request(text, **changes))


def test_a_text_that_is_not_there(tmp_path: Path) -> None:
    with refused("nowhere.txt"):
        prepare(make_request(tmp_path / "nowhere.txt"))


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"seeds": 0}, ("seeds = 0 must be from 1",)),
        ({"seeds": -1}, ("seeds = -1 must be from 1",)),
        ({"rates": 0}, ("rates = 0 must be from 1 to 25",)),
        ({"rates": 26}, ("rates = 26 must be from 1 to 25",)),
        ({"search_share": 0.0}, ("search_share = 0.0 must be above 0 and at most 1",)),
        ({"search_share": 1.5}, ("search_share = 1.5 must be above 0 and at most 1",)),
        ({"search_share": float("nan")}, ("search_share = nan",)),
        ({"seed": 2**32 - 1}, ("seed = 4294967295 and 1 after it pass",)),
        ({"batch_size": 0}, ("batch_size = 0",)),
        ({"architecture": {"split": ()}}, ("variants say what split is: leave --split out",)),
        ({"architecture": {"norm_scope": "head"}}, ("leave --norm-scope out",)),
        ({"budget": "width=64,tokens=640", "solve_depth": True}, ("--solve-depth",)),
    ],
)
def test_requests_that_make_no_sense(text: Path, changes: dict[str, Any], says: tuple[str, ...]) -> None:
    with refused(*says):
        make_request(text, **changes)
