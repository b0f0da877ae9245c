import pytest
import torch

from helpers.errors import refused
from smht.training.device import resolve_device


@pytest.mark.parametrize(
    ("cuda", "mps", "expected"),
    [(False, False, "cpu"), (False, True, "mps"), (True, False, "cuda"), (True, True, "cuda")],
)
def test_auto_takes_the_fastest_device_there_is(
    monkeypatch: pytest.MonkeyPatch, cuda: bool, mps: bool, expected: str
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: cuda)
    monkeypatch.setattr(torch.backends.mps, "is_available", lambda: mps)
    assert resolve_device("auto") == expected
    assert resolve_device("cpu") == "cpu"
    for name, there in (("cuda", cuda), ("mps", mps)):
        if there:
            assert resolve_device(name) == name
        else:
            with refused(f"no {name!r} device", "--device auto"):
                resolve_device(name)


def test_an_unknown_device_is_refused_with_the_choices() -> None:
    with refused("device = 'gpu'", "auto, cuda, mps, cpu"):
        resolve_device("gpu")
