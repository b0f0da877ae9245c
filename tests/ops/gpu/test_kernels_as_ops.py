"""The kernels as PyTorch ops: schemas, fake tensors, compiled graphs, counted multiplications, what they refuse."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils.flop_counter import FlopCounterMode

from helpers.gpu_kernels import DEVICE, interpreter_warnings, outcomes
from smht.ops import reference
from smht.ops.gpu import (
    attention_obstacle,
    feed_forward_obstacle,
    linear_obstacle,
    split_attention,
    split_feed_forward,
    split_linear,
)

pytestmark = [interpreter_warnings, pytest.mark.filterwarnings("ignore::DeprecationWarning")]

HEADS, HEAD_DIM, HEAD_WIDTH = 2, 3, 5
X, SQUARE = (2, 4, HEADS * HEAD_DIM), (HEADS, HEAD_DIM, HEAD_DIM)
UP, DOWN = (HEADS, HEAD_DIM, HEAD_WIDTH), (HEADS, HEAD_WIDTH, HEAD_DIM)


def tensors(*shapes: tuple[int, ...]) -> list[Tensor]:
    torch.manual_seed(0)
    return [torch.randn(shape, device=DEVICE, requires_grad=True) for shape in shapes]


def examples() -> list[Any]:
    """Arguments of each op by its name."""
    x, up, down, up_bias, down_bias = tensors(X, UP, DOWN, (HEADS * HEAD_WIDTH,), (HEADS * HEAD_DIM,))
    grad = torch.randn(2, 4, HEADS * HEAD_WIDTH, device=DEVICE, requires_grad=True)
    given = tensors(X, *[SQUARE] * 4)
    mask = torch.rand(2, 1, 1, 4, device=DEVICE) < 0.8
    seed = torch.tensor([3], device=DEVICE)
    residual = torch.randn(X, device=DEVICE, requires_grad=True)
    detached = [tensor.detach() for tensor in given]
    mixed, log_sums = torch.randn(X, device=DEVICE), torch.rand(2, HEADS, 4, device=DEVICE)
    return [
        ("split_linear", (x, up, up_bias)),
        ("split_linear", (x, up, None)),
        ("split_linear_weight_gradient", (x, grad, HEADS, True)),
        ("split_feed_forward", (x, up, down, "gelu", up_bias, down_bias)),
        ("split_feed_forward", (x, up, down, "silu", None, None)),
        (
            "split_feed_forward_backward",
            (x.detach(), x.detach(), up.detach(), down.detach(), "relu", up_bias.detach(), False, True, False),
        ),
        ("split_attention", (*given, mask, residual, seed, False, 0.3, 0.5, True)),
        ("split_attention", (*given, None, None, None, True, 0.0, 0.5, True)),
        ("split_attention_backward", (detached[0], *detached, mask, seed, mixed, log_sums, False, 0.3, 0.5)),
    ]


@pytest.mark.parametrize("number", range(9))
def test_opcheck(number: int) -> None:
    name, arguments = examples()[number]
    torch.library.opcheck(getattr(torch.ops.smht_gpu, name).default, arguments)


OPS: dict[str, tuple[str, Callable[[Any], Callable[..., Tensor]], list[tuple[int, ...]]]] = {
    "linear": ("split_linear", lambda op: lambda x, weight: op(x, weight, None), [X, UP]),
    "feed_forward": (
        "split_feed_forward",
        lambda op: lambda x, up, down: op(x, up, down, "gelu", None, None),
        [X, UP, DOWN],
    ),
    "attention": (
        "split_attention",
        lambda op: lambda *given: op(*given, True, None, 0.0, 0.5),
        [X, *[SQUARE] * 4],
    ),
}
KERNELS = {"split_linear": split_linear, "split_feed_forward": split_feed_forward, "split_attention": split_attention}


@pytest.mark.parametrize("op", OPS)
def test_traces_into_one_graph_with_its_gradients(op: str) -> None:
    name, bind, shapes = OPS[op]
    given = tensors(*shapes)
    torch.compiler.reset()
    compiled = torch.compile(bind(KERNELS[name]), fullgraph=True, backend="aot_eager")
    expected = outcomes(bind(KERNELS[name]), given, torch.float32)
    for ours, eager in zip(outcomes(compiled, given, torch.float32), expected, strict=True):
        torch.testing.assert_close(ours, eager)


def test_dropout_traces_into_one_graph() -> None:
    given = tensors(*OPS["attention"][2])
    torch.compiler.reset()
    compiled = torch.compile(lambda *x: split_attention(*x, False, None, 0.5, 0.5), fullgraph=True, backend="aot_eager")
    assert compiled(*given).isfinite().all()


@pytest.mark.parametrize("op", OPS)
def test_multiplications_are_counted_as_the_references(op: str) -> None:
    name, bind, shapes = OPS[op]

    def counted(function: Callable[..., Tensor]) -> tuple[int, int]:
        given = tensors(*shapes)
        with FlopCounterMode(display=False) as forward:
            output = function(*given)
        with FlopCounterMode(display=False) as backward:
            output.sum().backward()
        return forward.get_total_flops(), backward.get_total_flops()

    with torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.MATH):
        theirs = counted(bind(getattr(reference, name)))
    ours = counted(bind(KERNELS[name]))
    assert ours[0] == theirs[0]
    # Scores made again: flash attention's backward pass has them, the written-out one does not.
    batch, tokens, width = X
    again = 2 * batch * tokens * tokens * width if op == "attention" else 0
    assert ours[1] == theirs[1] + again


def test_nothing_stands_in_the_way_of_the_examples() -> None:
    x, up, down, q = tensors(X, UP, DOWN, SQUARE)
    assert linear_obstacle(x, up, None) is None
    assert feed_forward_obstacle(x, up, down, "gelu", None, None) is None
    assert attention_obstacle(x, q, q, q, q, True, None, 0.1, 1.0) is None


def test_what_the_kernels_do_not_take_is_said() -> None:
    x, up, q, mask = tensors(X, UP, SQUARE, (1, 1, 4, 4))
    assert linear_obstacle(x.double(), up.double(), None) == "dtype float64"
    assert linear_obstacle(x.half(), up, None) == "tensors of several dtypes: float16, float32"
    assert linear_obstacle(x, up.to("meta"), None) == f"tensors on several devices: {x.device}, meta"
    assert linear_obstacle(x.to("meta"), up.to("meta"), None) == "tensors on meta"
    assert attention_obstacle(x, q, q, q, q, False, mask, 0.0, 1.0) == "the mask takes a gradient"
    turn = torch.ones(1, 4, 1, device=DEVICE)
    assert attention_obstacle(x, q, q, q, q, True, None, 0.0, 1.0, turn, turn) == "queries and keys are to be turned"
    wide, wide_up = torch.zeros(1, 300, device=DEVICE), torch.zeros(1, 300, 2, device=DEVICE)
    assert feed_forward_obstacle(wide, wide_up, wide_up.mT, "gelu", None, None) == "head width 300 is above 128"
    square = torch.zeros(1, 300, 300, device=DEVICE)
    assert attention_obstacle(wide[None], square, square, square, square, False, None, 0.0, 1.0) == (
        "head width 300 is above 64"
    )
    halves = [tensor.half() for tensor in (wide[None], square)]
    assert attention_obstacle(halves[0], *halves[1:] * 4, False, None, 0.0, 1.0) == "head width 300 is above 128"


def test_autocast_makes_dtypes_equal() -> None:
    x, up = tensors(X, UP)
    with torch.autocast(DEVICE, dtype=torch.float16):
        assert linear_obstacle(x.half(), up, None) is None
        output = split_linear(x.half(), up, None)
    output.sum().backward()
    assert output.dtype == torch.float16 and up.grad is not None and up.grad.dtype == torch.float32
