import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from helpers.errors import refused
from smht.training.budget import DEFAULT_SECONDS, Budget


def steps(budget: Budget, **changes: Any) -> int:
    costs: dict[str, Any] = {
        "windows_per_epoch": 100,
        "batch_size": 8,
        "step_seconds": 0.5,
        "evaluation_seconds": 2.0,
        "evaluate_every": None,
    }
    return budget.to_steps(**{**costs, **changes})


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
    budget = Budget(seconds=seconds)
    taken = steps(budget, **costs)
    left = seconds - budget.evaluations(evaluation_seconds) * evaluation_seconds - taken * step_seconds
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


@pytest.mark.parametrize(
    ("evaluation_seconds", "evaluations", "expected"),
    [(0.0, 10, 200), (1.0, 10, 180), (3.0, 10, 140), (10.0, 3, 140), (50.0, 1, 100), (200.0, 1, 1)],
)
def test_slow_evaluations_become_fewer_and_leave_time_to_train(
    evaluation_seconds: float, evaluations: int, expected: int
) -> None:
    budget = Budget(seconds=100)
    assert budget.evaluations(evaluation_seconds) == evaluations
    assert steps(budget, evaluation_seconds=evaluation_seconds) == expected


def test_steps_and_epochs_have_their_ten_evaluations_however_slow() -> None:
    assert Budget(steps=5).evaluations(1e6) == Budget(epochs=1).evaluations(1e6) == 10
