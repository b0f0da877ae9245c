import pytest

from smht.comparison.search import best, explain_extension, extension, grid, rate, remarks


def test_grids_are_even_in_powers_of_two_around_the_default() -> None:
    assert grid(1) == (1.0,)
    assert grid(5) == pytest.approx([2**-1.5, 2**-0.75, 1, 2**0.75, 2**1.5])
    assert grid(2) == pytest.approx([2**-1.5, 2**1.5])


def test_rates_have_four_digits() -> None:
    assert rate(0.00667, 2**0.75) == 0.01122
    assert rate(0.02, 1.0) == 0.02


def test_the_best_is_the_lowest_loss_that_there_is() -> None:
    assert best({0.5: 2.0, 1.0: 1.5, 2.0: None}) == 1.0
    assert best({0.5: 2.0, 1.0: 2.0}) == 0.5
    assert best({0.5: None, 1.0: None}) is None


def test_the_grid_grows_where_somebody_did_best_at_its_end() -> None:
    factors = (0.5, 1.0, 2.0)
    assert extension(factors, [1.0, 1.0]) == ()
    assert extension(factors, [1.0, None]) == ()
    assert extension(factors, [0.5, 1.0]) == (0.25,)
    assert extension(factors, [2.0, 2.0]) == (4.0,)
    assert extension(factors, [2.0, 0.5]) == (0.25, 4.0)
    assert extension((1.0,), [1.0]) == ()


def test_what_there_is_to_say() -> None:
    chosen = {"a": 0.5, "b": 2.0, "c": 0.5, "d": 1.0, "e": None}
    below = explain_extension((0.5, 1.0, 2.0), 0.25, chosen)
    assert below == "a and c did best at the lowest rate tried: all variants try one more beyond it"
    assert explain_extension((0.5, 1.0, 2.0), 4.0, chosen).startswith("b did best at the highest rate tried")
    assert remarks((0.25, 0.5, 1.0, 2.0), chosen) == [
        "b did best at the highest of all rates tried: its best rate may lie beyond",
        "e: every rate diverged or failed, so there is no final training of it",
    ]
    assert remarks((0.5, 1.0, 4.0), {"a": 0.5}) == [
        "a did best at the lowest of all rates tried: its best rate may lie beyond"
    ]
    assert remarks((1.0,), {"a": 1.0}) == []
