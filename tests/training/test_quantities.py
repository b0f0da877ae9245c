import pytest
from hypothesis import given
from hypothesis import strategies as st

from helpers.errors import refused
from smht.training.quantities import format_duration, format_size, parse_duration


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


@pytest.mark.parametrize(
    ("count", "text"),
    [(0, "0 bytes"), (999, "999 bytes"), (1000, "1 kB"), (1_380_000, "1.38 MB"), (2e9, "2 GB"), (4e15, "4e+03 TB")],
)
def test_sizes_for_a_person(count: float, text: str) -> None:
    assert format_size(count) == text
