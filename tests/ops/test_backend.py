from dataclasses import replace

import pytest
import torch

from smht import ops
from smht.errors import UsageError
from smht.ops import backend


@pytest.fixture(autouse=True)
def nothing_chosen(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(backend, "_chosen", None)
    monkeypatch.delenv("SMHT_BACKEND", raising=False)


def test_the_reference_is_the_default() -> None:
    assert ops.get_backend().name == "reference"


def test_an_empty_variable_means_the_default(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SMHT_BACKEND", "")
    assert ops.get_backend().name == "reference"


def test_the_variable_names_the_backend(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(backend.BACKENDS, "other", replace(backend.BACKENDS["reference"], name="other"))
    monkeypatch.setenv("SMHT_BACKEND", "other")
    assert ops.get_backend().name == "other"
    ops.set_backend("reference")
    assert ops.get_backend().name == "reference"


def test_every_op_runs_on_the_backend_in_use(monkeypatch: pytest.MonkeyPatch) -> None:
    called = []

    def recorder(name: str):
        return lambda *_: called.append(name) or torch.zeros(1)

    names = ("split_linear", "split_feed_forward", "split_attention")
    recording = replace(backend.BACKENDS["reference"], name="recording", **{name: recorder(name) for name in names})
    monkeypatch.setitem(backend.BACKENDS, "recording", recording)
    ops.set_backend("recording")
    square = torch.zeros(2, 2, 2)
    ops.split_linear(torch.zeros(4), square)
    ops.split_feed_forward(torch.zeros(4), square, square)
    ops.split_attention(torch.zeros(1, 1, 4), square, square, square, square)
    assert called == list(names)


def test_an_unknown_name_is_refused_with_the_nearest_and_changes_nothing() -> None:
    ops.set_backend("reference")
    with pytest.raises(UsageError, match=r"^no backend is called 'refrence': did you mean reference\?$"):
        ops.set_backend("refrence")
    assert ops.get_backend().name == "reference"


def test_an_unknown_name_in_the_variable_is_refused_at_the_first_op(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SMHT_BACKEND", "cuda")
    with pytest.raises(UsageError, match=r"^no backend is called 'cuda': "):
        ops.split_linear(torch.zeros(4), torch.zeros(2, 2, 2))
