import pytest

from smht.comparison.search import best, extension, grid, rate


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
