"""The coordinate check and the rate transfer, on models that take a moment."""

import argparse
import math
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest

from helpers.benchmarks import benchmark
from smht.training import parametrisation
from smht.training.parametrisation import MUP, STANDARD


@pytest.fixture
def coordinate_check() -> Iterator[ModuleType]:
    with benchmark("coordinate_check") as module:
        yield module


@pytest.fixture
def rate_transfer() -> Iterator[ModuleType]:
    with benchmark("rate_transfer") as module:
        yield module


def check(module: ModuleType, **options: object) -> tuple[dict[str, float], dict[object, dict[str, float]]]:
    """The steepest slopes by name, and all changes, between two widths that a test has time for."""
    chosen = {"widths": (64, 256), "heads": (1, 4), "learning_rate": 1e-3, "steps": 3, "dense": False, "untied": False}
    found = module.measure(argparse.Namespace(**{**chosen, **options}))
    return {figure.name: figure.value for figure in module.figures_of(found, every=False)}, found


@pytest.mark.parametrize("options", [{}, {"dense": True, "untied": True, "heads": (4,)}], ids=["split", "dense"])
def test_activations_move_alike_at_every_width_and_number_of_heads(
    coordinate_check: ModuleType, options: dict[str, object]
) -> None:
    slopes, found = check(coordinate_check, **options)
    assert slopes[f"{STANDARD}: steepest rise with width"] > coordinate_check.GROWING
    assert slopes[f"{MUP}: steepest rise with width"] < 0.3
    assert slopes.get(f"{MUP}: steepest rise with heads", 0.0) < 0.3
    assert slopes.get(f"{MUP}: steepest fall with heads", 0.0) > -0.3
    assert all(change > 0 for changes in found.values() for change in changes.values())


def test_the_check_fails_where_blocks_are_taken_for_whole_matrices(
    coordinate_check: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(parametrisation, "fan_in_of", lambda projection: projection.in_features)
    slopes, _ = check(coordinate_check)
    assert slopes[f"{MUP}: steepest fall with heads"] < -0.5


def test_the_check_fails_where_a_tied_head_has_no_multiplier(
    coordinate_check: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    scales = parametrisation.scales

    def without(model: object) -> dict[object, object]:
        norm = set(model.model.last_norm.parameters())  # pyright: ignore[reportAttributeAccessIssue]
        return {weight: scale for weight, scale in scales(model).items() if weight not in norm}  # pyright: ignore

    monkeypatch.setattr(parametrisation, "scales", without)
    slopes, _ = check(coordinate_check, heads=(1,))
    assert slopes[f"{MUP}: steepest rise with width"] > 0.4


def test_slopes(coordinate_check: ModuleType) -> None:
    assert coordinate_check.slope([1, 2, 4], [3.0, 12.0, 48.0]) == pytest.approx(2)


def test_pictures(coordinate_check: ModuleType, rate_transfer: ModuleType, tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    _, found = check(coordinate_check, widths=(8, 16), steps=1)
    coordinate_check.draw(found, tmp_path / "coordinates.svg")
    model, sweep = rate_transfer.Model, rate_transfer.Sweep
    kinds = ((MUP, 2), (STANDARD, 2))
    losses = {1e-3: 2.0, 2e-3: 1.9, 4e-3: math.inf}
    sweeps = {model(name, width, heads): sweep(losses) for name, heads in kinds for width in (32, 64)}
    rate_transfer.draw(sweeps, tmp_path / "rates.svg")
    assert all((tmp_path / name).stat().st_size for name in ("coordinates.svg", "rates.svg"))


def test_best_rates_are_compared_with_those_of_the_narrowest(rate_transfer: ModuleType) -> None:
    model, sweep = rate_transfer.Model, rate_transfer.Sweep

    def with_best(place: int) -> object:
        return sweep({2.0**power: 2.0 + abs(power - place) for power in range(-11, -5)})

    found = {
        model(MUP, 32, 2): with_best(-9),
        model(MUP, 32, 4): with_best(-9),
        model(MUP, 64, 2): with_best(-8),
        model(STANDARD, 32, 2): with_best(-8),
        model(STANDARD, 64, 2): with_best(-11),
    }
    figures = {figure.name: figure for figure in rate_transfer.figures_of(found)}
    apart = figures["mup: best rates, farthest from one at width 32"]
    assert apart.value == 1 and apart.holds
    assert figures["standard: best rates, farthest from one at width 32"].value == 3
    price = next(figure for name, figure in figures.items() if name.startswith("mup: the most"))
    assert price.value == 1.0 and price.holds is False


def test_a_sweep_trains_at_every_rate(rate_transfer: ModuleType, tmp_path: Path) -> None:
    text = tmp_path / "text.txt"
    text.write_text("to be or not to be that is the question\n" * 60)
    options = {"text": str(text), "widths": (8,), "heads": (2,), "steps": 1}
    found = rate_transfer.measure(argparse.Namespace(**options))
    assert [str(model) for model in found] == ["mup, width 8, 2 heads", "standard, width 8, 2 heads"]
    for sweep in found.values():
        assert list(sweep.losses) == list(rate_transfer.RATES)
        assert all(loss > 0 for loss in sweep.losses.values())
