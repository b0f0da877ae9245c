import pytest
import torch

from helpers.command_line import refuse, succeed
from smht.ops import BACKENDS
from smht.ops.backend import OPS


def test_what_runs_here() -> None:
    found = succeed("doctor", "--json").json
    assert found["system"]["torch"] == torch.__version__
    assert {op["op"] for op in found["ops"]} == set(OPS)
    for op in found["ops"]:
        assert {*op["backends"], *op["why_not"]} == set(BACKENDS)
        assert op["backends"]["reference"] == []
    out = succeed("doctor").out
    for fragment in ("torch", "split_attention", "extra train"):
        assert fragment in out


@pytest.mark.skipif(torch.cuda.is_available(), reason="about machines without a GPU")
def test_a_machine_without_a_gpu_says_so() -> None:
    assert "; not gpu: no NVIDIA GPU" in succeed("doctor").out


def test_a_missing_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("smht.cli.doctor._EXTRAS", {"train": ("no_such_module",)})
    assert "no_such_module missing: pip install 'smht[train]'" in succeed("doctor").out


def test_it_takes_nothing() -> None:
    refuse("doctor", "run", says="unexpected extra argument")
