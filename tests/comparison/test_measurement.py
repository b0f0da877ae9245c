from pathlib import Path

import torch

from helpers.comparisons import make_request
from smht.comparison.measurement import LiveTensors, measure
from smht.comparison.setting import prepare

KB = 1000


def numbers(kilobytes: int) -> torch.Tensor:
    return torch.ones(kilobytes * KB // 4)


def test_live_tensors_are_followed_until_nobody_holds_them() -> None:
    present = numbers(10)
    with LiveTensors([present, present.view(50, -1)]) as live:
        assert live.peak == live.bytes == 10 * KB
        first = numbers(1)
        assert live.bytes == 11 * KB
        second = first + 1
        view = second[5:]
        del first, second
        assert live.bytes == 11 * KB  # the view holds it
        view.add_(1)
        assert (live.bytes, live.peak) == (11 * KB, 12 * KB)
        del view
        assert live.bytes == 10 * KB
    numbers(100)
    assert live.peak == 12 * KB


def test_gradients_and_what_backward_needs_are_counted() -> None:
    weight = numbers(10).requires_grad_()
    with LiveTensors([weight]) as live:
        loss = (weight * 2).sin().sum()  # keeps the product for backward
        assert 20 * KB <= live.bytes < 21 * KB
        loss.backward()
        del loss
    assert 20 * KB <= live.bytes < 21 * KB  # the weight and its gradient
    assert live.peak >= 30 * KB


def test_costs_are_measured(text: Path) -> None:
    setting = prepare(make_request(text))
    measured = setting.measure()
    assert list(measured) == ["split+shuffle", "dense"]
    parameters = {solved.variant.name: solved.cost for solved in setting.solved}
    for name, costs in measured.items():
        assert 0 < costs.step_seconds < 10 and 0 < costs.window_seconds < 10
        # Weights, gradients and two moments, and the activations of a tiny model.
        assert 16 * parameters[name] < costs.peak_memory_bytes < 16 * parameters[name] + 500 * KB
    larger = measure(setting.solved[0].config, setting.examples, 32, "cpu")
    assert larger.peak_memory_bytes > measured["split+shuffle"].peak_memory_bytes + 300 * KB
