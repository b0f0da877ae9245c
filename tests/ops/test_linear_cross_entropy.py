"""The contract of the head's loss, on every backend."""

import math
from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor
from torch._subclasses import FakeTensorMode

from helpers.errors import refused
from helpers.tensors import assert_all_close, value_and_gradients
from smht.ops import linear_cross_entropy


def inputs(*leading: int, width: int = 5, vocab_size: int = 7, dtype: torch.dtype = torch.float64) -> list[Tensor]:
    """Hidden states, the head's weight and labels, the first of which does not count."""
    hidden = torch.randn(*leading, width, dtype=dtype)
    labels = torch.randint(vocab_size, leading)
    if labels.numel():
        labels.view(-1)[0] = -100
    return [hidden, torch.randn(vocab_size, width, dtype=dtype), labels]


def plain(hidden: Tensor, weight: Tensor, labels: Tensor, ignore_index: int = -100) -> Tensor:
    logits = F.linear(hidden.flatten(0, -2), weight)
    return F.cross_entropy(logits, labels.flatten(), ignore_index=ignore_index, reduction="sum")


def of_numbers(function: Callable[..., Tensor], *others: object) -> Callable[..., Tensor]:
    return lambda hidden, weight: function(hidden, weight, *others)


@given(
    leading=st.lists(st.integers(0, 4), min_size=1, max_size=3),
    width=st.integers(1, 9),
    vocab_size=st.integers(1, 40),
    ignored=st.sampled_from([-100, -1, 0]),
    dtype=st.sampled_from([torch.float64, torch.float32]),
    seed=st.integers(0, 2**32),
)
def test_equals_a_linear_layer_and_cross_entropy(
    leading: list[int], width: int, vocab_size: int, ignored: int, dtype: torch.dtype, seed: int
) -> None:
    torch.manual_seed(seed)
    hidden, weight, labels = inputs(*leading, width=width, vocab_size=vocab_size, dtype=dtype)
    labels[labels == -100] = ignored
    ours = value_and_gradients(of_numbers(linear_cross_entropy, labels, ignored), hidden, weight)
    theirs = value_and_gradients(of_numbers(plain, labels, ignored), hidden, weight)
    assert_all_close(ours, theirs, tolerance=1e-10 if dtype == torch.float64 else 1e-4)


def test_is_the_surprise_of_the_labels() -> None:
    weight = torch.log(torch.tensor([[1.0], [2.0], [5.0]]))
    loss = linear_cross_entropy(torch.ones(3, 1), weight, torch.tensor([2, 0, -100]))
    assert loss.item() == pytest.approx(-math.log(5 / 8) - math.log(1 / 8))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32, torch.float64])
def test_the_loss_is_at_least_in_single_precision_and_gradients_are_as_inputs(dtype: torch.dtype) -> None:
    hidden, weight, labels = inputs(40, dtype=dtype)
    loss, *gradients = value_and_gradients(of_numbers(linear_cross_entropy, labels), hidden, weight)
    assert loss.dtype == torch.promote_types(dtype, torch.float32)
    assert [gradient.dtype for gradient in gradients] == [dtype] * 2


@pytest.mark.parametrize("leading", [(6,), (0,)])
def test_where_no_label_counts_the_sum_and_its_gradients_are_zero(leading: tuple[int, ...]) -> None:
    hidden, weight, labels = inputs(*leading, dtype=torch.float32)
    results = value_and_gradients(of_numbers(linear_cross_entropy, torch.full_like(labels, -100)), hidden, weight)
    assert [tensor.shape for tensor in results] == [(), hidden.shape, weight.shape]
    assert all((tensor == 0).all() for tensor in results)


def test_gradients_may_be_asked_for_again_and_one_alone() -> None:
    hidden, weight, labels = inputs(50, dtype=torch.float32)
    hidden.requires_grad_()
    weight.requires_grad_()
    loss = linear_cross_entropy(hidden, weight, labels)
    both = torch.autograd.grad(loss, (hidden, weight), retain_graph=True)
    doubled = torch.autograd.grad(2 * loss, (hidden, weight))
    assert_all_close(doubled, [2 * gradient for gradient in both], tolerance=1e-6)
    for wanted in (0, 1):
        given = [tensor.detach().requires_grad_(place == wanted) for place, tensor in enumerate((hidden, weight))]
        (alone,) = torch.autograd.grad(linear_cross_entropy(*given, labels), given[wanted])
        assert torch.equal(alone, both[wanted])
    with torch.no_grad():
        assert torch.equal(linear_cross_entropy(hidden, weight, labels), loss)


def test_meta_and_fake_tensors() -> None:
    tensors = inputs(2, 3, dtype=torch.float32)
    assert linear_cross_entropy(*(tensor.to("meta") for tensor in tensors)).is_meta
    with FakeTensorMode() as mode:
        fake = linear_cross_entropy(*(mode.from_tensor(tensor) for tensor in tensors))
    assert fake.shape == () and fake.dtype == torch.float32


@pytest.mark.parametrize(
    ("changes", "needles"),
    [
        ({"weight": (7, 4)}, ("hidden must be [..., D] and weight [V, D]", "[2, 3, 5]", "[7, 4]")),
        ({"weight": (7, 5, 1)}, ("weight [V, D]", "[7, 5, 1]")),
        ({"labels": (3, 2)}, ("labels must be int64 of shape [2, 3]", "[3, 2]")),
        ({"labels": (6,)}, ("labels must be int64 of shape [2, 3]", "[6]")),
    ],
)
def test_shapes_that_do_not_fit_are_refused(changes: dict[str, tuple[int, ...]], needles: tuple[str, ...]) -> None:
    hidden, weight, labels = inputs(2, 3)
    weight = weight.new_zeros(changes.get("weight", weight.shape))
    labels = labels.new_zeros(changes.get("labels", labels.shape))
    with refused("linear_cross_entropy", *needles):
        linear_cross_entropy(hidden, weight, labels)


def test_labels_of_another_type_are_refused() -> None:
    hidden, weight, labels = inputs(6)
    with refused("labels must be int64", "got int32 of shape [6]"):
        linear_cross_entropy(hidden, weight, labels.int())


@pytest.mark.parametrize("wrong", [7, -1, -99, 2**40])
def test_a_label_outside_the_vocabulary_is_refused(wrong: int) -> None:
    hidden, weight, labels = inputs(40, dtype=torch.float32)
    labels[33] = wrong
    with refused(f"label {wrong} is outside the vocabulary of 7 tokens"):
        linear_cross_entropy(hidden, weight, labels)
