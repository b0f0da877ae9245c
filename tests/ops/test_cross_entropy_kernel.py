"""The CPU kernel of the head's loss: every output and gradient against float64, and as a part of torch."""

from collections.abc import Callable, Iterator
from functools import partial

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.utils.flop_counter import FlopCounterMode

from helpers.kernels import assert_rounds_like, cpu_kernels
from helpers.tensors import assert_all_close, value_and_gradients
from smht import ops
from smht.ops import reference

# PyTorch's compiler uses parts of PyTorch that PyTorch deprecates.
pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")

IGNORED = -100
ORIGINAL_REFERENCE = ops.BACKENDS["reference"]
BOTH_DTYPES = pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])


@pytest.fixture(scope="module", autouse=True)
def chosen_backend() -> Iterator[None]:
    with cpu_kernels():
        yield


def inputs(
    tokens: int, width: int, vocab_size: int, dtype: torch.dtype = torch.float32, ignored: float = 0.2
) -> tuple[Tensor, Tensor, Tensor]:
    """Hidden states, the head's weight, and labels a part of which does not count."""
    torch.manual_seed(tokens)
    hidden, weight = torch.randn(tokens, width), 2 * torch.randn(vocab_size, width) / width**0.5
    labels = torch.randint(vocab_size, (tokens,)).masked_fill(torch.rand(tokens) < ignored, IGNORED)
    return hidden.to(dtype), weight.to(dtype), labels


def ours(hidden: Tensor, weight: Tensor, labels: Tensor) -> Tensor:
    """The kernel's loss in the inputs' type, so that one function compares it with its gradients."""
    return ops.linear_cross_entropy(hidden, weight, labels).to(hidden.dtype)


def plain(hidden: Tensor, weight: Tensor, labels: Tensor) -> Tensor:
    return reference.linear_cross_entropy(hidden, weight, labels, IGNORED).to(hidden.dtype)


def compare(hidden: Tensor, weight: Tensor, labels: Tensor) -> None:
    assert_rounds_like(partial(ours, labels=labels), partial(plain, labels=labels), hidden, weight)
    exact, theirs = (
        plain(hidden.double(), weight.double(), labels),
        reference.linear_cross_entropy(hidden, weight, labels, IGNORED),
    )
    error = (ops.linear_cross_entropy(hidden, weight, labels).double() - exact).abs()
    assert error <= 2 * (theirs.double() - exact).abs() + 4 * torch.finfo(torch.float32).eps * exact.abs()


@settings(max_examples=60, derandomize=True)
@given(
    tokens=st.integers(1, 150),
    width=st.integers(1, 40),
    vocab_size=st.integers(1, 130),
    dtype=st.sampled_from([torch.float32, torch.bfloat16]),
    ignored=st.sampled_from([0.0, 0.3, 0.9]),
)
def test_rounds_like_pytorch(tokens: int, width: int, vocab_size: int, dtype: torch.dtype, ignored: float) -> None:
    compare(*inputs(tokens, width, vocab_size, dtype, ignored))


@BOTH_DTYPES
@pytest.mark.parametrize(
    ("tokens", "width", "vocab_size"),
    [(1, 1, 1), (1, 64, 500), (1100, 64, 2052), (600, 33, 1003), (700, 1, 2), (70, 300, 97)],
)
def test_rounds_like_pytorch_over_many_tiles(tokens: int, width: int, vocab_size: int, dtype: torch.dtype) -> None:
    compare(*inputs(tokens, width, vocab_size, dtype))


@BOTH_DTYPES
def test_large_logits_neither_overflow_nor_lose_the_loss(dtype: torch.dtype) -> None:
    hidden, weight, labels = inputs(200, 16, 100, dtype)
    hidden = hidden * (1e4 / (hidden.double() @ weight.double().T).abs().max())
    compare(hidden, weight, labels)
    loss = ops.linear_cross_entropy(hidden, weight, labels)
    assert loss.isfinite() and loss > 1e5


def test_a_number_that_is_none_shows() -> None:
    hidden, weight, labels = inputs(100, 8, 50, ignored=0.0)
    hidden[70, 3] = torch.nan
    assert ops.linear_cross_entropy(hidden, weight, labels).isnan()


def test_words_that_cannot_be() -> None:
    hidden, weight = torch.ones(1, 1), torch.ones(300, 1)
    weight[:200] = -torch.inf
    loss = ops.linear_cross_entropy(hidden, weight, torch.tensor([299]))
    torch.testing.assert_close(loss, torch.tensor(100.0).log())


@BOTH_DTYPES
def test_tokens_that_do_not_count_are_not_looked_at(dtype: torch.dtype) -> None:
    hidden, weight, labels = inputs(300, 20, 90, dtype, ignored=0.5)
    counts = labels != IGNORED
    alone = value_and_gradients(partial(ours, labels=labels[counts]), hidden[counts], weight)
    poisoned = hidden.masked_fill(~counts[:, None], torch.nan)
    loss, by_hidden, by_weight = value_and_gradients(partial(ours, labels=labels), poisoned, weight)
    assert torch.equal(loss, alone[0]) and torch.equal(by_weight, alone[2])
    assert torch.equal(by_hidden[counts], alone[1]) and (by_hidden[~counts] == 0).all()


@BOTH_DTYPES
def test_layouts_do_not_change_results(dtype: torch.dtype) -> None:
    hidden, weight, labels = inputs(150, 32, 70, dtype)
    expected = value_and_gradients(partial(ours, labels=labels), hidden, weight)
    hiddens = [torch.cat([hidden, hidden], -1)[:, 32:], hidden.T.contiguous().T]
    weights = [torch.cat([weight, weight], -1)[:, :32], weight.T.contiguous().T]
    for view, turned in zip(hiddens, weights, strict=True):
        strided_labels = torch.stack([labels, labels], -1)[:, 0]
        assert_all_close(value_and_gradients(partial(ours, labels=strided_labels), view, turned), expected, tolerance=0)


@BOTH_DTYPES
def test_results_do_not_depend_on_the_number_of_threads(dtype: torch.dtype) -> None:
    hidden, weight, labels = inputs(1500, 24, 700, dtype)
    before = torch.get_num_threads()
    results = []
    try:
        for threads in (1, 2, 3):
            torch.set_num_threads(threads)
            results.append(value_and_gradients(partial(ours, labels=labels), hidden, weight))
    finally:
        torch.set_num_threads(before)
    for others in results[1:]:
        assert_all_close(others, results[0], tolerance=0)


@BOTH_DTYPES
@pytest.mark.parametrize("wanted", [(True, True), (True, False), (False, True)])
def test_opcheck(dtype: torch.dtype, wanted: tuple[bool, bool]) -> None:
    hidden, weight, labels = inputs(7, 5, 11, dtype)
    given = [tensor.requires_grad_(want) for tensor, want in zip((hidden, weight), wanted, strict=True)]
    torch.library.opcheck(torch.ops.smht.linear_cross_entropy.default, (*given, labels, IGNORED, *wanted))


@pytest.mark.parametrize("autocast", [False, True])
def test_compiles_into_one_graph_with_its_gradients(autocast: bool) -> None:
    def call(hidden: Tensor, weight: Tensor, labels: Tensor) -> Tensor:
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=autocast):
            return ops.linear_cross_entropy(hidden.sin(), weight, labels) / 3

    torch.compiler.reset()
    compiled = torch.compile(call, fullgraph=True, backend="aot_eager", dynamic=True)
    for tokens in (40, 33):
        hidden, weight, labels = inputs(tokens, 5, 11)
        assert_all_close(
            value_and_gradients(partial(compiled, labels=labels), hidden, weight),
            value_and_gradients(partial(call, labels=labels), hidden, weight),
            tolerance=1e-6,
        )
    with pytest.raises(IndexError, match="label 11 is outside the vocabulary of 11 tokens"):
        compiled(hidden, weight, labels.masked_fill(labels == IGNORED, 11))


def test_autocast_does_as_to_the_reference() -> None:
    hidden, weight, labels = inputs(60, 16, 30)

    def cast(function: Callable[..., Tensor]) -> list[Tensor]:
        def call(hidden: Tensor, weight: Tensor) -> Tensor:
            with torch.autocast("cpu", dtype=torch.bfloat16):
                return function(hidden, weight, labels, IGNORED)

        return value_and_gradients(call, hidden, weight)

    for our, their in zip(cast(ops.linear_cross_entropy), cast(reference.linear_cross_entropy), strict=True):
        assert our.dtype == their.dtype == torch.float32
        assert (our - their).norm() <= 0.03 * their.norm()


def test_second_derivatives_are_those_of_the_reference() -> None:
    hidden, weight, labels = inputs(40, 5, 11)

    def squared_slopes(function: Callable[..., Tensor]) -> list[Tensor]:
        leaves = [tensor.detach().requires_grad_() for tensor in (hidden, weight)]
        first = torch.autograd.grad(function(*leaves, labels).square(), leaves, create_graph=True)
        return list(torch.autograd.grad(sum(slope.square().sum() for slope in first), leaves))

    assert_all_close(squared_slopes(ours), squared_slopes(plain), tolerance=1e-3)


def test_flops_of_forward_and_backward_are_those_of_the_reference() -> None:
    hidden, weight, labels = inputs(40, 5, 11)
    for wanted in [(True, True), (True, False), (False, True), (False, False)]:
        given = [tensor.detach().requires_grad_(want) for tensor, want in zip((hidden, weight), wanted, strict=True)]
        counted = []
        for function in (ours, plain):
            with FlopCounterMode(display=False) as counter:
                loss = function(*given, labels)
                if any(wanted):
                    loss.backward()
            counted.append(counter.get_total_flops())
        assert counted[0] == counted[1] == 2 * 40 * 5 * 11 * (1 + sum(wanted))


def test_transforms_of_functions_take_the_reference(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(ops.BACKENDS, "reference", ORIGINAL_REFERENCE)
    hidden, weight, labels = inputs(40, 5, 11, ignored=0.0)
    mapped = torch.func.vmap(lambda row, label: ops.linear_cross_entropy(row[None], weight, label[None]))(
        hidden, labels
    )
    torch.testing.assert_close(mapped.sum(), ops.linear_cross_entropy(hidden, weight, labels))
    slope = torch.func.grad(ops.linear_cross_entropy)(hidden, weight, labels)
    expected = value_and_gradients(partial(ours, labels=labels), hidden, weight, seed=0)[1]
    weighting = torch.randn((), dtype=torch.float64, generator=torch.Generator().manual_seed(0)).float()
    torch.testing.assert_close(slope * weighting, expected, rtol=1e-4, atol=1e-5)
