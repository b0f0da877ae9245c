import math

import pytest

from smht.comparison.report.numbers import (
    write_count,
    write_interval,
    write_number,
    write_p,
    write_seconds,
    write_share,
    write_short,
)
from smht.comparison.statistics import Interval


@pytest.mark.parametrize(
    ("mean", "half_width", "text"),
    [
        (1.71591, 0.00471, "1.7159 ± 0.0047"),
        (1.7159, 0.0471, "1.716 ± 0.047"),
        (1.7, 12.0, "2 ± 12"),
        (1.7, None, "1.7000"),
        (1.7, 0.0, "1.7000 ± 0.0000"),
        (1.7, 3e-9, "1.700000 ± 3e-9"),
        (-0.0021, 0.0103, "−0.002 ± 0.010"),
        (-0.0000001, 0.5, "0.00 ± 0.50"),
        (2.5e-7, 1e-7, "2.5e-7 ± 1e-7"),
        (1.234e9, 2.5e7, "1.23e9 ± 2.5e7"),
    ],
)
def test_intervals_show_two_digits_of_their_half_width(mean: float, half_width: float | None, text: str) -> None:
    assert write_interval(Interval(mean, half_width, 3)) == text


def test_signs_are_written_where_asked_for() -> None:
    assert [write_number(value, 0.01, signed=True) for value in (0.5, -0.5, 0.0)] == ["+0.500", "−0.500", "0.000"]


@pytest.mark.parametrize(
    ("value", "text"),
    [(0.0, "0"), (0.003, "3e-3"), (0.0962, "0.0962"), (20, "20"), (9999, "9999"), (12_345, "12.35k"), (1.5e6, "1.5M")],
)
def test_short_numbers(value: float, text: str) -> None:
    assert write_short(value) == text
    assert write_short(-value) == ("0" if value == 0 else f"-{text}")


def test_other_numbers() -> None:
    assert [write_count(value) for value in (812_345, 3.007e12, 0)] == ["812,345", "3.01e12", "0"]
    assert [write_seconds(value) for value in (155.4, 12.46, 0.0312, 2e9)] == ["155", "12.5", "0.0312", "2e9"]
    assert [write_p(value) for value in (0.01234, 3e-5, 1.0, None)] == ["0.0123", "< 0.0001", "1", "–"]
    assert [write_share(value) for value in (0.0088, -0.012, 1e-7)] == ["0.88%", "−1.2%", "0%"]


@pytest.mark.parametrize("value", [None, math.nan, math.inf, -math.inf])
def test_what_is_no_number_is_a_dash(value: float | None) -> None:
    for write in (write_number, write_count, write_seconds, write_short):
        assert write(value) == "–"
    assert write_interval(None) == "–"
