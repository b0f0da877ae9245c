"""Each op as part of a compiled graph without breaks."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from helpers.kernels import random_rotation
from helpers.tensors import assert_all_close, value_and_gradients
from smht.ops import backend, permute_channels, split_attention, split_feed_forward, split_linear

# PyTorch's compiler uses parts of PyTorch that PyTorch deprecates.
pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")

HEADS, HEAD_DIM, HEAD_WIDTH = 2, 3, 5
HIDDEN = HEADS * HEAD_DIM
ORDER = torch.tensor([3, 0, 5, 1, 4, 2])
SQUARE = (HEADS, HEAD_DIM, HEAD_DIM)
ROTATION = random_rotation(2, 4, 2, torch.float64)

OPS: dict[str, tuple[Callable[..., Tensor], list[tuple[int, ...]]]] = {
    "split_linear": (split_linear, [(HEADS, HEAD_DIM, HEAD_WIDTH), (HEADS * HEAD_WIDTH,)]),
    "split_feed_forward": (split_feed_forward, [(HEADS, HEAD_DIM, HEAD_WIDTH), (HEADS, HEAD_WIDTH, HEAD_DIM)]),
    "split_attention": (split_attention, [SQUARE] * 4),
    "causal split_attention": (lambda *given: split_attention(*given, is_causal=True), [SQUARE] * 4),
    "masked split_attention": (
        lambda *given: split_attention(*given[:5], mask=given[5]),
        [*[SQUARE] * 4, (1, 1, 4, 4)],
    ),
    "rotated split_attention": (
        lambda *given: split_attention(*given, is_causal=True, rotation=ROTATION),
        [(HIDDEN // 2, 2, 2)] * 4,
    ),
    "permute_channels": (lambda x: permute_channels(x, ORDER, torch.argsort(ORDER)), []),
}


def check_compiled(op: str, compiler: str) -> None:
    function, shapes = OPS[op]
    torch.manual_seed(0)
    tensors = [torch.randn(shape, dtype=torch.float64) for shape in [(2, 4, HIDDEN), *shapes]]
    torch.compiler.reset()
    compiled = torch.compile(function, fullgraph=True, backend=compiler)
    assert_all_close(value_and_gradients(compiled, *tensors), value_and_gradients(function, *tensors))


@pytest.mark.parametrize("choice", [None, "reference"])
def test_the_first_call_of_a_process_may_be_a_compiled_one(monkeypatch: pytest.MonkeyPatch, choice: str | None) -> None:
    monkeypatch.setattr(backend, "_chosen", None)
    monkeypatch.setattr(backend, "_FIRST_LOOKS", {})
    monkeypatch.delenv("SMHT_BACKEND", raising=False)
    if choice:
        monkeypatch.setenv("SMHT_BACKEND", choice)
    torch.compiler.reset()
    x, weight = torch.randn(2, 6), torch.randn(2, 3, 5)
    twice = torch.compile(lambda: split_linear(x, weight) + split_linear(x, weight), fullgraph=True, backend="eager")
    ours = [twice(), twice()]
    assert backend._chosen is None
    assert_all_close(ours, [2 * split_linear(x, weight)] * 2)


@pytest.mark.parametrize("op", OPS)
def test_traces_into_one_graph_with_its_gradients(op: str) -> None:
    check_compiled(op, "aot_eager")


@pytest.mark.slow
@pytest.mark.parametrize("op", ["split_linear", "split_feed_forward", "causal split_attention", "permute_channels"])
def test_compiles_to_machine_code(op: str) -> None:
    check_compiled(op, "inductor")
