import math
import sys

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from helpers.errors import refused
from smht.comparison.scaling_law import HUBER, Crossing, Fit, Point, PowerLaw, find_crossing, fit_power_law, widening

optimize = pytest.importorskip("scipy.optimize")

SIZES = (1e5, 3e5, 1e6, 3e6, 1e7)
DENSE = PowerLaw(1.0, math.log(20.0), 0.25)
SPLIT = PowerLaw(1.0, math.log(40.0), 0.30)
MEETING = 2.0 ** (1 / 0.05)
"""Where 20 N^-0.25 = 40 N^-0.3."""


def points_of(
    law: PowerLaw, noise: float = 0.0, seeds: int = 3, seed: int = 0, sizes: tuple[float, ...] = SIZES
) -> list[Point]:
    generator = np.random.default_rng(seed)
    return [
        Point(size, float(law.loss(size)) * math.exp(generator.normal(0, noise)), number)
        for size in sizes
        for number in range(seeds)
    ]


laws = st.builds(PowerLaw, st.floats(0.5, 2.5), st.floats(1.0, 5.0), st.floats(0.15, 0.6))


@given(laws, st.integers(4, 6))
@settings(max_examples=5)
def test_points_on_a_law_give_that_law(law: PowerLaw, count: int) -> None:
    sizes = tuple(np.geomspace(1e3, 1e6, count))
    found = fit_power_law("split", points_of(law, seeds=1, sizes=sizes), replicates=2)
    assert found.law.irreducible == pytest.approx(law.irreducible, rel=1e-4)
    assert found.law.exponent == pytest.approx(law.exponent, rel=1e-3)
    assert found.law.log_coefficient == pytest.approx(law.log_coefficient, rel=1e-3, abs=1e-3)
    assert found.loss(1e8).value == pytest.approx(float(law.loss(1e8)), rel=1e-4)


def test_no_other_minimiser_finds_a_better_fit() -> None:
    """The paper's objective, by another parametrisation and a method without gradients."""
    points = points_of(DENSE, noise=0.004)
    sizes, losses = np.log([p.size for p in points]), np.log([p.loss for p in points])

    def objective(found: np.ndarray) -> float:
        irreducible, log_coefficient, exponent = found
        predicted = np.log(np.abs(irreducible) + np.exp(log_coefficient - exponent * sizes))
        return float(optimize_huber(predicted - losses))

    law = fit_power_law("dense", points, replicates=1).law
    ours = objective(np.array([law.irreducible, law.log_coefficient, law.exponent]))
    others = [
        optimize.minimize(
            objective, start, method="Nelder-Mead", options={"maxiter": 20_000, "xatol": 1e-10, "fatol": 1e-14}
        ).fun
        for start in ([1.0, 3.0, 0.25], [0.5, 2.0, 0.15], [1.2, 4.0, 0.4])
    ]
    assert ours <= min(others) * (1 + 1e-6)


def optimize_huber(residuals: np.ndarray) -> float:
    special = pytest.importorskip("scipy.special")
    return special.huber(HUBER, residuals).sum()


def test_one_wild_trial_hardly_matters() -> None:
    points = points_of(DENSE, noise=0.0005)
    wild = [*points[:-1], Point(points[-1].size, 1.3 * points[-1].loss)]
    found = fit_power_law("dense", wild, replicates=2).law
    assert found.exponent == pytest.approx(DENSE.exponent, rel=0.05)


@pytest.mark.slow
def test_intervals_hold_the_truth_about_as_often_as_they_say() -> None:
    hits = np.zeros(3)
    trials = 16
    for seed in range(trials):
        found = fit_power_law("dense", points_of(DENSE, noise=0.004, seed=seed), replicates=40)
        truths = (DENSE.irreducible, DENSE.exponent, float(DENSE.loss(1e9)))
        estimates = (found.irreducible, found.exponent, found.loss(1e9))
        hits += [e.low <= truth <= e.high for e, truth in zip(estimates, truths, strict=True)]
    assert (hits >= 0.75 * trials).all(), hits


def test_residuals_are_widened_as_tables_of_t_say() -> None:
    assert widening(4) == pytest.approx(2 * 12.706 / 1.960, rel=1e-3)
    assert widening(12) == pytest.approx(math.sqrt(12 / 9) * 2.262 / 1.960, rel=1e-3)
    assert widening(10**6) == pytest.approx(1, rel=1e-4)


def test_intervals_widen_beyond_the_sizes_measured() -> None:
    found = fit_power_law("dense", points_of(DENSE, noise=0.004), replicates=60)
    widths = [found.loss(size).high - found.loss(size).low for size in (1e6, 1e8, 1e10)]
    assert 0 < widths[0] < widths[1] < widths[2]
    inside = found.loss(1e6)
    assert inside.low <= inside.value <= inside.high
    assert (found.smallest, found.largest) == (1e5, 1e7)


def test_one_seed_has_intervals_from_how_far_sizes_are_off_the_law() -> None:
    found = fit_power_law("dense", points_of(DENSE, noise=0.004, seeds=1), replicates=60)
    assert found.exponent.high - found.exponent.low > 0.01


def test_the_same_seed_gives_the_same_intervals() -> None:
    points = points_of(DENSE, noise=0.004)
    first, again, other = (fit_power_law("dense", points, replicates=20, seed=seed) for seed in (0, 0, 1))
    assert first == again
    assert first.law == other.law and first.replicates != other.replicates


def test_losses_that_do_not_fall_are_a_flat_law() -> None:
    for losses in ((2.0, 2.0, 2.0, 2.0), (2.0, 2.1, 2.2, 2.3)):
        points = [Point(size, loss) for size, loss in zip(SIZES, losses, strict=False)]
        found = fit_power_law("flat", points, replicates=3)
        assert 1.99 < found.loss(1e12).value < 2.31
        assert found.loss(1e12).value == pytest.approx(found.loss(1e5).value, rel=1e-2)


def exact(name: str, law: PowerLaw, *replicates: PowerLaw) -> Fit:
    return Fit(name, law, replicates or (law,), tuple(points_of(law)))


def test_laws_cross_where_algebra_says() -> None:
    for fits in ((exact("split", SPLIT), exact("dense", DENSE)), (exact("dense", DENSE), exact("split", SPLIT))):
        found = find_crossing(*fits)
        assert (found.worse, found.better) == ("split", "dense")
        assert found.size == pytest.approx(MEETING, rel=1e-9)
        assert (found.low, found.high) == pytest.approx((MEETING, MEETING), rel=1e-9)
        assert found.share == 1.0
        assert (found.smallest, found.largest) == (1e5, 1e10)


def test_laws_that_do_not_cross_in_the_range_say_so() -> None:
    parallel = PowerLaw(1.1, DENSE.log_coefficient, DENSE.exponent)
    assert find_crossing(exact("dense", DENSE), exact("above", parallel)) == Crossing(
        "above", "dense", None, math.inf, math.inf, 0.0, 1.0, 1e5, 1e10
    )
    short = find_crossing(exact("split", SPLIT), exact("dense", DENSE), largest=0.9 * MEETING)
    assert (short.size, short.share, short.stays, short.largest) == (None, 0.0, 1.0, 0.9 * MEETING)


def test_an_interval_may_reach_out_of_the_range() -> None:
    never = PowerLaw(1.1, SPLIT.log_coefficient, SPLIT.exponent)
    always = PowerLaw(0.1, SPLIT.log_coefficient, 0.35)
    split = exact("split", SPLIT, *[SPLIT] * 18, never, always)
    dense = exact("dense", DENSE, *[DENSE] * 20)
    found = find_crossing(split, dense)
    assert found.size == pytest.approx(MEETING)
    assert (found.low, found.high) == (0.0, math.inf)
    assert (found.share, found.stays) == pytest.approx((0.9, 0.05))


def test_a_fitted_crossing_has_the_truth_in_its_interval() -> None:
    fits = [
        fit_power_law(name, points_of(law, noise=0.002, seed=seed), replicates=60)
        for seed, (name, law) in enumerate((("split", SPLIT), ("dense", DENSE)))
    ]
    found = find_crossing(*fits)
    assert found.low < MEETING < found.high
    assert found.size is not None and found.low <= found.size <= found.high
    assert found.high / found.low < 3


def test_fewer_than_four_sizes_are_refused() -> None:
    with refused("at least 4 sizes", "split has 3", "train more sizes"):
        fit_power_law("split", points_of(SPLIT, sizes=SIZES[:3]))


@pytest.mark.parametrize("value", [0.0, -1.0, math.nan, math.inf])
def test_numbers_without_a_logarithm_are_refused(value: float) -> None:
    points = points_of(SPLIT)
    with refused("split, seed 7", "loss", "above 0 and finite"):
        fit_power_law("split", [*points, Point(1e6, value, 7)])
    with refused("split, seed 7", "size", "above 0 and finite"):
        fit_power_law("split", [*points, Point(value, 1.0, 7)])


def test_an_empty_range_is_refused() -> None:
    with refused("no range from size 100000 to 1000"):
        find_crossing(exact("split", SPLIT), exact("dense", DENSE), largest=1000.0)


def test_without_scipy_the_line_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "scipy.optimize", None)
    with refused("scipy", "pip install 'smht[compare]'"):
        fit_power_law("split", points_of(SPLIT))
