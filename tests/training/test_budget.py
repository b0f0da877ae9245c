import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from helpers.errors import refused
from smht.training.budget import DEFAULT_SECONDS, Budget, format_duration, parse_duration


def steps(budget: Budget, **changes: Any) -> int:
    costs: dict[str, Any] = {
        "windows_per_epoch": 100,
        "batch_size": 8,
        "step_seconds": 0.5,
        "evaluation_seconds": 2.0,
        "evaluate_every": None,
    }
    return budget.to_steps(**{**costs, **changes})


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("90", 90),
        ("1.5", 1.5),
        ("90s", 90),
        ("2m", 120),
        ("2.5m", 150),
        ("1h30m", 5400),
        ("1h2m3s", 3723),
        ("1h5s", 3605),
        (" 1 H 30 M ", 5400),
    ],
)
def test_durations(text: str, seconds: float) -> None:
    assert parse_duration(text) == seconds


@pytest.mark.parametrize(
    "text", ["", " ", "0", "0s", "0h0m", "-5s", "5d", "500ms", "1m1h", "1h1h", "1,5m", "nan", "2 m x"]
)
def test_what_is_no_duration_is_refused(text: str) -> None:
    with refused(repr(text), "90s, 2m or 1h30m"):
        parse_duration(text)


@pytest.mark.parametrize("text", ["1h30", "2m30"])
def test_a_number_without_unit_after_one_with_unit_is_not_guessed_at(text: str) -> None:
    with refused(repr(text)):
        parse_duration(text)


@given(st.integers(0, 99), st.integers(0, 59), st.integers(1, 59))
def test_durations_add_up(hours: int, minutes: int, seconds: int) -> None:
    assert parse_duration(f"{hours}h{minutes}m{seconds}s") == 3600 * hours + 60 * minutes + seconds


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0.2, "0 s"),
        (8, "8 s"),
        (59.4, "59 s"),
        (59.6, "1 min"),
        (125, "2 min 5 s"),
        (3599, "59 min 59 s"),
        (3600, "1 h 0 min"),
        (12000, "3 h 20 min"),
        (90000, "25 h 0 min"),
        (-1, "0 s"),
    ],
)
def test_durations_for_a_person(seconds: float, text: str) -> None:
    assert format_duration(seconds) == text


def test_steps_are_taken_as_they_are() -> None:
    assert steps(Budget(steps=7)) == 7


@pytest.mark.parametrize(("epochs", "expected"), [(1, 13), (2, 25), (0.5, 7), (0.001, 1)])
def test_epochs_are_passes_over_the_windows(epochs: float, expected: int) -> None:
    assert steps(Budget(epochs=epochs)) == expected


def test_a_time_leaves_room_for_evaluations() -> None:
    assert steps(Budget(seconds=60)) == (60 - 10 * 2) / 0.5
    assert steps(Budget(seconds=60), evaluate_every=4) == 60 / (0.5 + 2 / 4)
    assert steps(Budget(seconds=60), step_seconds=0.25) == 160


def test_a_time_too_short_for_anything_is_one_step() -> None:
    assert steps(Budget(seconds=1)) == 1


def test_nothing_asked_for_is_the_default_time() -> None:
    assert steps(Budget()) == steps(Budget(seconds=DEFAULT_SECONDS)) > 1
    assert not Budget().is_given
    assert all(Budget(**{name: 1}).is_given for name in ("steps", "epochs", "seconds"))


@given(st.floats(1, 1e6), st.floats(1e-4, 100), st.floats(0, 100))
def test_a_time_is_kept_where_it_allows_a_step(seconds: float, step_seconds: float, evaluation_seconds: float) -> None:
    costs = {"step_seconds": step_seconds, "evaluation_seconds": evaluation_seconds}
    taken = steps(Budget(seconds=seconds), **costs)
    left = seconds - 10 * evaluation_seconds - taken * step_seconds
    assert taken == 1 or -1e-6 * seconds <= left < 1.001 * step_seconds


@pytest.mark.parametrize("name", ["steps", "epochs", "seconds"])
@pytest.mark.parametrize("value", [0, -1, math.nan, math.inf])
def test_a_budget_is_a_number_above_zero(name: str, value: float) -> None:
    with refused(f"{name} = {value}"):
        Budget(**{name: value})


def test_two_budgets_are_refused_by_the_names_of_their_options() -> None:
    with refused("--steps and --time"):
        Budget(steps=5, seconds=5)
    with refused("--steps and --epochs and --time"):
        Budget(steps=5, epochs=1, seconds=5)


@pytest.mark.parametrize("budget", [Budget(steps=10**21), Budget(epochs=1e18), Budget(seconds=1e15)])
def test_a_budget_beyond_all_measure_is_refused(budget: Budget) -> None:
    with refused("is more than the 1,000,000,000,000 that a run can have"):
        steps(budget)
