import sys

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from helpers.errors import refused
from smht.comparison.statistics import corrected, holm, mean_interval, paired_difference

# Hours of sleep that ten patients gained by two drugs: Student 1908, R's `sleep`.
DRUG_1 = (0.7, -1.6, -0.2, -1.2, -0.1, 3.4, 3.7, 0.8, 0.0, 2.0)
DRUG_2 = (1.9, 0.8, 1.1, 0.1, -0.1, 4.4, 5.5, 1.6, 4.6, 3.4)

stats = pytest.importorskip("scipy.stats")


def by_seed(values: tuple[float, ...]) -> dict[int, float]:
    return dict(enumerate(values))


def test_the_paired_difference_of_students_own_data_is_what_r_prints() -> None:
    found = paired_difference("drug 1", by_seed(DRUG_1), "drug 2", by_seed(DRUG_2))
    assert found.interval is not None
    assert found.interval.mean == pytest.approx(-1.58)
    assert found.interval.low == pytest.approx(-2.4598858)
    assert found.interval.high == pytest.approx(-0.7001142)
    assert found.p_value == pytest.approx(0.002833, abs=5e-7)
    assert found.seeds == tuple(range(10))
    assert found.excludes_zero and found.is_told


values = st.lists(st.tuples(st.floats(0.5, 4), st.floats(0.5, 4)), min_size=2, max_size=12)


@given(values)
def test_paired_differences_agree_with_scipys_test(pairs: list[tuple[float, float]]) -> None:
    a, b = (dict(enumerate(column)) for column in zip(*pairs, strict=True))
    differences = np.subtract(*np.array(pairs).T)
    if differences.std() < 1e-6:
        return
    expected = stats.ttest_rel(list(a.values()), list(b.values()))
    low, high = expected.confidence_interval(0.95)
    found = paired_difference("a", a, "b", b)
    assert found.interval is not None
    assert [found.interval.low, found.interval.high] == pytest.approx([low, high], rel=1e-9, abs=1e-12)
    assert found.p_value == pytest.approx(expected.pvalue, rel=1e-7)
    assert found.excludes_zero == (expected.pvalue < 0.05)


@given(st.lists(st.floats(-1e3, 1e3), min_size=2, max_size=9))
def test_an_interval_is_the_mean_and_t_times_its_standard_error(sample: list[float]) -> None:
    found = mean_interval(sample)
    assert found.half_width is not None
    expected = stats.t.ppf(0.975, len(sample) - 1) * np.std(sample, ddof=1) / np.sqrt(len(sample))
    assert found.mean == pytest.approx(np.mean(sample), abs=1e-9)
    assert found.half_width == pytest.approx(expected, rel=1e-6, abs=1e-9)


def test_one_seed_has_no_interval() -> None:
    assert mean_interval([1.5]).half_width is None
    found = paired_difference("a", {0: 1.5}, "b", {0: 1.7, 1: 1.6})
    assert found.seeds == (0,)
    assert found.interval is not None
    assert found.interval.half_width is None
    assert found.p_value is None
    assert not found.excludes_zero and not found.is_told


def test_only_common_seeds_are_compared() -> None:
    found = paired_difference("a", {0: 1.0, 1: 2.0, 5: 9.0}, "b", {1: 1.5, 0: 0.5, 7: 3.0})
    assert found.seeds == (0, 1)
    assert found.interval is not None
    assert found.interval.mean == 0.5


def test_without_common_seeds_there_is_nothing() -> None:
    found = paired_difference("a", {0: 1.0}, "b", {1: 1.5})
    assert found.interval is None and found.p_value is None and not found.is_told


def test_equal_losses_are_no_difference_and_a_constant_one_is() -> None:
    same = {0: 1.25, 1: 1.5, 2: 1.75}
    found = paired_difference("a", same, "b", same)
    assert found.p_value == 1.0 and not found.excludes_zero
    lower = {seed: value - 0.25 for seed, value in same.items()}
    found = paired_difference("a", lower, "b", same)
    assert found.p_value == 0.0 and found.is_told


def test_holms_correction_is_that_of_r() -> None:
    assert holm([0.01, 0.04, 0.03, 0.005]) == pytest.approx([0.03, 0.06, 0.06, 0.02])
    assert holm([0.6, 0.7]) == [1.0, 1.0]
    assert holm([0.02]) == [0.02]
    assert holm([]) == []


@given(st.lists(st.floats(0, 1), min_size=1, max_size=8))
def test_holm_rejects_what_the_step_down_procedure_rejects(p_values: list[float]) -> None:
    rejected = [False] * len(p_values)
    for rank, place in enumerate(np.argsort(p_values, kind="stable")):
        if not p_values[place] < 0.05 / (len(p_values) - rank):
            break
        rejected[place] = True
    margins = [abs(p * (len(p_values) - k) - 0.05) for p in p_values for k in range(len(p_values))]
    if min(margins) > 1e-12:
        assert [p < 0.05 for p in holm(p_values)] == rejected


def test_a_correction_may_take_a_difference_away() -> None:
    clear = paired_difference("a", {0: 1.0, 1: 1.01, 2: 1.02}, "r", {0: 1.10, 1: 1.12, 2: 1.11})
    close = paired_difference("b", {0: 1.0, 1: 1.01, 2: 1.02}, "r", {0: 1.03, 1: 1.03, 2: 1.035})
    alone = paired_difference("c", {0: 1.0}, "r", {0: 1.1})
    assert close.is_told and close.p_value is not None and 0.025 < close.p_value < 0.05
    again = corrected([close, alone, clear, close])
    assert [difference.is_told for difference in again] == [False, False, True, False]
    assert all(difference.excludes_zero for difference in (again[0], again[2]))
    assert again[0].corrected_p == pytest.approx(2 * close.p_value)


def test_without_scipy_the_line_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "scipy.stats", None)
    with refused("scipy", "pip install 'smht[compare]'"):
        mean_interval([1.0, 2.0])
