from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from helpers.made_up_comparisons import FakeComparison, trial_row
from smht.comparison.report import summarise
from smht.comparison.report.curves import mean_curve
from smht.comparison.report.figure_style import COLOURS, line_style
from smht.comparison.report.figure_svg import draw_figure
from smht.comparison.report.pareto import COSTS, pareto_front, priced, telling_costs
from smht.comparison.results import TrialResult

pytest.importorskip("matplotlib")


def trial(seed: int, points: list[tuple[int, float | None]]) -> TrialResult:
    curve = [{"tokens": x, "seconds": 0.1 * x, "training_multiply_adds": x, "validation_loss": y} for x, y in points]
    return TrialResult(**trial_row("a", "final", seed, 1.5, curve=curve))


def test_curves_of_seeds_are_averaged_where_all_have_points() -> None:
    curve = mean_curve(
        [trial(0, [(0, 4.0), (10, 3.0), (20, 2.0)]), trial(1, [(5, 3.0), (15, 2.0), (30, 1.0)])], "tokens"
    )
    assert curve is not None
    assert curve.x.tolist() == [5, 10, 15, 20]
    first, second = np.array([3.5, 3.0, 2.5, 2.0]), np.array([3.0, 2.5, 2.0, 2.0 - 1 / 3])
    assert curve.mean == pytest.approx((first + second) / 2)
    assert curve.low == pytest.approx(second)
    assert curve.high == pytest.approx(first)
    assert curve.seeds == 2


def test_points_that_are_no_numbers_are_left_out() -> None:
    points = [(1, 3.0), (2, float("nan")), (3, None), (4, float("inf")), (5, 2.0)]
    curve = mean_curve([trial(0, points)], "tokens")
    assert curve is not None and curve.x.tolist() == [1, 5]


def test_without_common_points_there_is_no_mean() -> None:
    assert mean_curve([trial(0, [(1, 3.0), (2, 2.0)]), trial(1, [(3, 3.0), (4, 2.0)])], "tokens") is None
    assert mean_curve([trial(0, [])], "tokens") is None
    assert mean_curve([], "tokens") is None


points = st.lists(st.tuples(st.integers(0, 6), st.integers(0, 6)), min_size=1, max_size=8)


@given(points)
def test_the_front_is_what_nothing_dominates(pairs: list[tuple[int, int]]) -> None:
    named = {str(place): (float(x), float(y)) for place, (x, y) in enumerate(pairs)}
    front = pareto_front(named)
    for name, (x, y) in named.items():
        dominated = any((a < x and b <= y) or (a <= x and b < y) for a, b in named.values())
        assert (name in front) == (not dominated)
    assert [named[name][0] for name in front] == sorted(named[name][0] for name in front)


def test_costs_alike_within_two_percent_have_no_front(tmp_path: Path) -> None:
    comparison = FakeComparison(("dense", "split"))
    changes = {"dense": {"seconds": 100.0}, "split": {"seconds": 130.0, "parameters": 789_000}}
    rows = [row | {"parameters": 800_000} | changes[row["variant"]] for row in comparison.finals()]
    outcomes = summarise(comparison.write(tmp_path, rows)).outcomes
    assert [cost.name for cost in telling_costs(outcomes)] == ["seconds"]
    prices = priced(outcomes, COSTS[0])
    assert {name: price for name, (price, _) in prices.items()} == pytest.approx({"dense": 100, "split": 130})


def test_styles_differ_without_colour() -> None:
    styles = [line_style(place) for place in range(28)]
    assert len({(style.color, str(style.linestyle)) for style in styles}) == 28
    assert len({(str(style.linestyle), style.marker) for style in styles[:20]}) == 20


def luminance(colour: str) -> float:
    """Relative, by WCAG 2."""
    parts = [int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)]
    linear = [part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def test_colours_stand_out_from_either_paper() -> None:
    import smht.comparison.report.page as module

    style = Path(module.__file__).with_name("page.css").read_text()
    light, dark = style.split("@media (prefers-color-scheme: dark)")
    for place, colour in enumerate(COLOURS):
        assert f"--series-{place}: {colour};" in light
        assert 1.05 / (luminance(colour) + 0.05) > 3
        [on_dark] = [part[:7] for part in dark.split(f"--series-{place}: ")[1:]]
        assert (luminance(on_dark) + 0.05) / (luminance("#14171a") + 0.05) > 3


def test_the_same_picture_is_the_same_bytes() -> None:
    def draw(panel: Any) -> None:
        panel.plot([0, 1], [0, 1], **line_style(0).sample)
        panel.fill_between([0, 1], [0, 1], [1, 2])

    first, second = (draw_figure("name", "title", "words", draw, {"a $ b_": line_style(0)}) for _ in range(2))
    assert first == second
    assert b"<svg" in first.file and "<svg" in first.svg
