import subprocess
import sys
from dataclasses import replace
from typing import Any

import pytest
import torch

from helpers.errors import refused
from smht import ops
from smht.errors import UsageError
from smht.ops import backend
from smht.ops.call import Condition, Worth

SQUARE = torch.zeros(2, 2, 2)


@pytest.fixture(autouse=True)
def nothing_chosen(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(backend, "_chosen", None)
    # A copy, since a row that was taken out and put back would come last.
    monkeypatch.setattr(backend, "BACKENDS", dict(backend.BACKENDS))
    monkeypatch.delenv("SMHT_BACKEND", raising=False)


def add_row(monkeypatch: pytest.MonkeyPatch, name: str, called: list[str] | None = None, **fields: object) -> None:
    """A backend that records its calls and returns 1."""

    def recorder(op: str):
        return lambda *_: (called if called is not None else []).append(op) or torch.ones(1)

    row = replace(backend.BACKENDS["reference"], name=name, functions={op: recorder(op) for op in backend.OPS})
    monkeypatch.setitem(backend.BACKENDS, name, replace(row, **fields))


def call_every_op() -> None:
    ops.split_linear(torch.zeros(4), SQUARE)
    ops.split_feed_forward(torch.zeros(4), SQUARE, SQUARE)
    ops.split_attention(torch.zeros(1, 1, 4), SQUARE, SQUARE, SQUARE, SQUARE)
    ops.linear_cross_entropy(torch.zeros(1, 4), torch.zeros(2, 4), torch.zeros(1, dtype=torch.int64))
    ops.permute_channels(torch.zeros(2), torch.tensor([1, 0]), torch.tensor([1, 0]))
    weights = ops.DecoderWeights([SQUARE] * 6, [torch.zeros(4)] * 3, [torch.zeros(4)] * 3)
    ops.split_decode(torch.zeros(1, 4), weights, [torch.zeros(1, 2, 1, 2)], [torch.zeros(1, 2, 1, 2)], 0)


def test_automatic_is_the_default() -> None:
    assert ops.get_backend() == "auto"


def test_an_empty_variable_means_the_default(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SMHT_BACKEND", "")
    assert ops.get_backend() == "auto"


def test_the_variable_names_the_backend(monkeypatch: pytest.MonkeyPatch) -> None:
    add_row(monkeypatch, "other")
    monkeypatch.setenv("SMHT_BACKEND", "other")
    assert ops.get_backend() == "other"
    ops.set_backend("reference")
    assert ops.get_backend() == "reference"


@pytest.mark.parametrize("choice", ["recording", "auto"])
def test_every_op_runs_on_the_backend_in_use(monkeypatch: pytest.MonkeyPatch, choice: str) -> None:
    called: list[str] = []
    monkeypatch.delitem(backend.BACKENDS, "cpu")
    add_row(monkeypatch, "recording", called)
    ops.set_backend(choice)
    call_every_op()
    assert called == list(backend.OPS)


def test_the_reference_computes_what_a_backend_does_not_take(monkeypatch: pytest.MonkeyPatch) -> None:
    called: list[str] = []
    never = {op: (Condition("the impossible", lambda call: False),) for op in ("split_linear", "split_attention")}
    add_row(monkeypatch, "choosy", called, conditions=never)
    ops.set_backend("choosy")
    call_every_op()
    assert called == ["split_feed_forward", "linear_cross_entropy", "permute_channels", "split_decode"]


def test_what_is_not_worthwhile_goes_to_the_reference_only_if_the_choice_is_automatic(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    called: list[str] = []
    monkeypatch.delitem(backend.BACKENDS, "cpu")
    slow = {"split_linear": Worth("more work", lambda arguments: False)}
    add_row(monkeypatch, "slow", called, worthwhile=slow)
    ops.set_backend("auto")
    ops.split_linear(torch.zeros(4), SQUARE)
    assert called == []
    ops.set_backend("slow")
    ops.split_linear(torch.zeros(4), SQUARE)
    assert called == ["split_linear"]


def test_an_unknown_name_is_refused_with_the_nearest_and_changes_nothing() -> None:
    ops.set_backend("reference")
    with pytest.raises(UsageError, match=r"^no backend is called 'refrence': did you mean reference\?$"):
        ops.set_backend("refrence")
    assert ops.get_backend() == "reference"


@pytest.mark.parametrize("name", [None, 5, []])
def test_what_is_no_name_is_refused(name: Any) -> None:
    with refused("a backend is named by a string", repr(name)):
        ops.set_backend(name)


def test_an_unknown_name_in_the_variable_is_refused_at_the_first_op(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SMHT_BACKEND", "cuda")
    with pytest.raises(UsageError, match=r"^no backend is called 'cuda': "):
        ops.split_linear(torch.zeros(4), SQUARE)


def test_a_backend_that_cannot_run_is_refused_if_forced(monkeypatch: pytest.MonkeyPatch) -> None:
    add_row(monkeypatch, "absent", why_unavailable=lambda: "the moon is full")
    with refused("the backend 'absent' cannot run here", "the moon is full"):
        ops.set_backend("absent")


def test_a_backend_that_cannot_run_is_replaced_by_the_reference(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(backend.BACKENDS, "cpu")
    add_row(monkeypatch, "absent", why_unavailable=lambda: "the moon is full")
    assert ops.split_linear(torch.zeros(4), SQUARE).tolist() == [0.0] * 4
    call_every_op()


def test_explain_says_for_each_op_which_backend_runs_and_why_others_do_not(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("cpu", "gpu"):
        monkeypatch.delitem(backend.BACKENDS, name)
    add_row(monkeypatch, "absent", why_unavailable=lambda: "the moon is full")
    needs = (Condition("even numbers", lambda call: True),)
    add_row(monkeypatch, "present", conditions={"split_linear": needs})
    choices = ops.explain()
    assert [choice.op for choice in choices] == list(backend.OPS)
    assert all(list(choice.backends) == ["present", "reference"] for choice in choices)
    assert all(choice.why_not["absent"] == "the moon is full" for choice in choices)
    assert choices[0].backends == {"present": ("even numbers",), "reference": ()}
    assert str(choices[0]).splitlines() == [
        "split_linear:",
        "  present for calls that need nothing else than: even numbers",
        "  reference for all other calls",
        "  not absent: the moon is full",
    ]
    ops.set_backend("reference")
    assert all(list(choice.backends) == ["reference"] for choice in ops.explain())
    assert "chosen" in ops.explain()[0].why_not["present"]
    assert "  reference for all calls" in str(ops.explain()[0])


def test_explain_names_backends_in_the_order_in_which_they_are_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    called: list[str] = []
    few = {"split_linear": (Condition("few numbers", lambda call: call.arguments[0].numel() <= 4),)}
    good = {"split_linear": Worth("a good reason", lambda arguments: True)}
    for name in ("cpu", "gpu"):
        monkeypatch.delitem(backend.BACKENDS, name)
    add_row(monkeypatch, "first", conditions=few, worthwhile=good)
    add_row(monkeypatch, "second", called)
    assert ops.explain()[0].backends == {"first": ("a good reason", "few numbers"), "second": (), "reference": ()}
    ops.split_linear(torch.zeros(4), SQUARE)
    assert called == []
    ops.split_linear(torch.zeros(2, 4), SQUARE)
    assert called == ["split_linear"]
    ops.set_backend("first")
    assert ops.explain()[0].backends == {"first": ("few numbers",), "reference": ()}


def test_importing_the_package_neither_builds_nor_loads_kernels() -> None:
    program = """
import sys
import smht, smht.ops
assert "torch.utils.cpp_extension" not in sys.modules and "smht.ops.operators" not in sys.modules
"""
    subprocess.run([sys.executable, "-c", program], check=True)


def test_an_op_that_a_backend_does_not_have_goes_to_the_reference(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(backend.BACKENDS, "cpu")
    called: list[str] = []
    add_row(monkeypatch, "partial", called)
    row = backend.BACKENDS["partial"]
    monkeypatch.setitem(
        backend.BACKENDS, "partial", replace(row, functions={"split_linear": row.functions["split_linear"]})
    )
    ops.set_backend("partial")
    call_every_op()
    assert called == ["split_linear"]
    choices = {choice.op: choice for choice in ops.explain()}
    assert list(choices["split_linear"].backends) == ["partial", "reference"]
    assert list(choices["split_attention"].backends) == ["reference"]
    assert choices["split_attention"].why_not["partial"] == "it has no kernel for this op"
