from types import SimpleNamespace
from typing import Any

import pytest

from smht.ops.backend import OpChoice
from smht.training import announcement


def prepared(device: str, split: tuple[str, ...] = ("qkv",)) -> Any:
    config = SimpleNamespace(split=split)
    return SimpleNamespace(settings=SimpleNamespace(device=device), model=SimpleNamespace(config=config))


@pytest.mark.parametrize(
    ("device", "says"),
    [
        ("cpu", ", with smht's kernels"),
        ("cuda", ", in plain PyTorch (no NVIDIA GPU)"),
        ("mps", ""),
    ],
)
def test_what_computes_on_each_device(device: str, says: str, monkeypatch: pytest.MonkeyPatch) -> None:
    choice = OpChoice("split_linear", {"cpu": ("tensors on the CPU",), "reference": ()}, {"gpu": "no NVIDIA GPU"})
    monkeypatch.setattr(announcement, "explain", lambda: [choice])
    assert announcement._kernels(prepared(device)) == says
    assert announcement._kernels(prepared(device, split=())) == ""
