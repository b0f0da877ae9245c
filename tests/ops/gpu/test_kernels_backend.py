"""The row `gpu` of the backend table, with its kernels."""

import pytest
import torch
from torch import Tensor

from helpers.gpu_kernels import DEVICE, INTERPRETED, interpreter_warnings
from smht import ops

pytestmark = interpreter_warnings


def results() -> dict[str, Tensor]:
    """What each op gives, by its name; the backend that ran shows in the graph."""
    torch.manual_seed(0)
    x = torch.randn(2, 3, 6, device=DEVICE)
    up = torch.randn(2, 3, 4, device=DEVICE, requires_grad=True)
    square = torch.randn(2, 3, 3, device=DEVICE, requires_grad=True)
    return {
        "split_linear": ops.split_linear(x, up),
        "split_feed_forward": ops.split_feed_forward(x, up, up.mT, "silu"),
        "split_attention": ops.split_attention(x, *[square] * 4, is_causal=True),
    }


def ran_kernels(result: Tensor) -> bool:
    return "smht_gpu" in type(result.grad_fn).__name__


def test_every_op_runs_on_the_kernels_if_they_are_chosen() -> None:
    ops.set_backend("reference")
    expected = results()
    assert not any(map(ran_kernels, expected.values()))
    ops.set_backend("gpu")
    for op, result in results().items():
        assert ran_kernels(result)
        torch.testing.assert_close(result, expected[op])


@pytest.mark.skipif(not INTERPRETED, reason="about the interpreter")
def test_nothing_runs_in_the_interpreter_by_itself() -> None:
    ops.set_backend("auto")
    assert not any(map(ran_kernels, results().values()))


@pytest.mark.skipif(INTERPRETED, reason="about GPUs")
def test_tensors_on_a_gpu_go_to_the_kernels_by_themselves() -> None:
    ops.set_backend("auto")
    assert all(map(ran_kernels, results().values()))


def test_what_the_kernels_do_not_take_goes_to_the_reference() -> None:
    ops.set_backend("gpu")
    x, square = torch.randn(1, 2, 6, device=DEVICE), torch.randn(2, 3, 3, device=DEVICE, requires_grad=True)
    assert not ran_kernels(ops.split_linear(x.double(), square.double()))
    mask = torch.zeros(1, 1, 2, 2, device=DEVICE, requires_grad=True)
    assert not ran_kernels(ops.split_attention(x, *[square] * 4, mask=mask))
    if INTERPRETED:  # whose bfloat16 is wrong
        assert not ran_kernels(ops.split_linear(x.bfloat16(), square.bfloat16()))


def test_autocast_makes_dtypes_equal() -> None:
    ops.set_backend("gpu")
    x, square = torch.randn(2, 6, device=DEVICE).half(), torch.randn(2, 3, 3, device=DEVICE, requires_grad=True)
    with torch.autocast(DEVICE, dtype=torch.float16):
        output = ops.split_linear(x, square)
    output.sum().backward()
    assert ran_kernels(output)
    assert output.dtype == torch.float16 and square.grad is not None and square.grad.dtype == torch.float32


def test_compiled_graphs_run_the_kernels() -> None:
    ops.set_backend("gpu")
    x, square = torch.randn(2, 3, 6, device=DEVICE), torch.randn(2, 3, 3, device=DEVICE)
    graphs: list[str] = []

    def note(graph: torch.fx.GraphModule, _: object) -> torch.fx.GraphModule:
        graphs.append(str(graph.graph))
        return graph

    torch.compiler.reset()
    compiled = torch.compile(lambda *given: ops.split_attention(*given), fullgraph=True, backend=note)
    torch.testing.assert_close(compiled(x, *[square] * 4), ops.split_attention(x, *[square] * 4))
    assert len(graphs) == 1 and "smht_gpu.split_attention" in graphs[0]


def test_explain_names_the_kernels() -> None:
    ops.set_backend("gpu")
    for choice in ops.explain():
        has_kernel = choice.op in ops.BACKENDS["gpu"].functions
        assert list(choice.backends) == (["gpu", "reference"] if has_kernel else ["reference"])
    ops.set_backend("auto")
    for choice in ops.explain():
        assert ("gpu" in choice.backends) == (choice.op in ops.BACKENDS["gpu"].functions)
