"""`benchmarks/gpu.py` with kernels that are wrong or missing."""

import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import pytest
from torch import Tensor

from helpers.gpu_kernels import interpreter_warnings
from smht.ops import BACKENDS

pytestmark = interpreter_warnings

RIGHT = BACKENDS["gpu"].functions["split_linear"]


@pytest.fixture
def benchmark(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """`gpu.py`, of which only the comparison of `split_linear` is left."""
    monkeypatch.syspath_prepend(str(Path(__file__).parents[3] / "benchmarks"))
    import gpu
    import gpu_cases

    monkeypatch.setattr(gpu_cases, "OPS", ("linear",))
    monkeypatch.setattr(gpu_cases, "variants", lambda *_: [])
    monkeypatch.setattr(sys, "argv", ["gpu.py", "--smoke"])
    return gpu


def missing(*_: object) -> Tensor:
    raise RuntimeError("no such kernel")


@pytest.mark.parametrize(
    ("kernel", "failing"),
    [(lambda *given: RIGHT(*given) * 1.001, "\n  error ÷ PyTorch's, fp32"), (missing, "\n  ran: fp32")],
    ids=["wrong", "missing"],
)
def test_the_exit_code_says_that_a_check_failed(
    benchmark: ModuleType,
    kernel: Callable[..., Tensor],
    failing: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setitem(BACKENDS["gpu"].functions, "split_linear", kernel)
    assert benchmark.main() == 1
    out = capsys.readouterr().out
    assert "checks that fail: 1" in out and failing in out


def test_a_call_that_the_kernels_leave_to_the_reference_fails(
    benchmark: ModuleType, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delitem(BACKENDS["gpu"].functions, "split_linear")
    assert benchmark.main() == 1
    assert "the kernels did not take the call" in capsys.readouterr().out
