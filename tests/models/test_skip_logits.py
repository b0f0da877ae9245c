"""`skip_logits`: the same loss and gradients without logits, and the plain path wherever that would show."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from helpers.errors import refused
from helpers.hugging_face import ARCHITECTURES, VOCAB_SIZE, random_tokens, tiny_model, tiny_seq2seq
from helpers.tensors import assert_all_close
from smht import SmhtForCausalLM, ops
from smht.models import head_loss
from smht.models.labels import IGNORED

TOKENS = random_tokens(3, 9)
LABELS = random_tokens(3, 9, seed=1).masked_fill(torch.arange(9) % 4 == 1, IGNORED)


@pytest.fixture
def fused_calls(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, ...]]:
    """The shapes of the hidden states that the op was called with."""
    calls: list[tuple[int, ...]] = []

    def record(hidden: Tensor, *others: Any) -> Tensor:
        calls.append(tuple(hidden.shape))
        return ops.linear_cross_entropy(hidden, *others)

    monkeypatch.setattr(head_loss, "ops", type("Recorder", (), {"linear_cross_entropy": staticmethod(record)}))
    return calls


def loss_and_gradients(model: nn.Module, **given: Any) -> list[Tensor]:
    loss = model(**given).loss
    return [loss.detach(), *torch.autograd.grad(loss, list(model.parameters()))]


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"num_items_in_batch": 5},
        {"num_items_in_batch": torch.tensor(11)},
        {"shift_labels": LABELS},
        {"shift_labels": LABELS.flatten()},
        {"ignore_index": 3},
    ],
    ids=["plain", "number", "tensor", "shifted", "flat", "ignored"],
)
@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_loss_and_gradients_are_the_same(
    architecture: str, options: dict[str, Any], fused_calls: list[tuple[int, ...]]
) -> None:
    model = tiny_model(architecture, use_cache=False)
    labels = LABELS.masked_fill(LABELS == IGNORED, options.get("ignore_index", IGNORED))
    given = {"input_ids": TOKENS, "labels": labels, **options}
    expected = loss_and_gradients(model, **given)
    assert not fused_calls
    assert_all_close(loss_and_gradients(model, **given, skip_logits=True), expected, tolerance=1e-5)
    assert fused_calls == [(27, 16)]


def test_logits_are_left_out_only_if_asked_and_with_labels(fused_calls: list[tuple[int, ...]]) -> None:
    model = tiny_model()
    for options in ({"labels": LABELS}, {"skip_logits": True}, {}):
        assert model(TOKENS, **options).logits.shape == (3, 9, VOCAB_SIZE)
    assert not fused_calls
    assert model(TOKENS, labels=LABELS, skip_logits=True).logits is None
    tupled = model(TOKENS, labels=LABELS, skip_logits=True, return_dict=False, use_cache=False)
    assert len(tupled) == 1 and tupled[0].shape == ()


def test_half_precision_keeps_its_loss_in_single_precision() -> None:
    model = tiny_model().bfloat16()
    plain = model(TOKENS, labels=LABELS).loss
    fused = model(TOKENS, labels=LABELS, skip_logits=True).loss
    assert fused.dtype == plain.dtype == torch.float32
    torch.testing.assert_close(fused, plain, rtol=1e-2, atol=0)
    assert tiny_model().double()(TOKENS, labels=LABELS, skip_logits=True).loss.dtype == torch.float32


def hook(model: SmhtForCausalLM) -> None:
    model.lm_head.register_forward_hook(lambda *arguments: arguments[-1] * 2)


def replace_forward(model: SmhtForCausalLM) -> None:
    model.lm_head.forward = lambda hidden: F.linear(hidden, model.lm_head.weight) * 2


def add_bias(model: SmhtForCausalLM) -> None:
    head = nn.Linear(16, VOCAB_SIZE)
    nn.init.normal_(head.bias)
    model.lm_head = head


def subclass(model: SmhtForCausalLM) -> None:
    class Doubled(nn.Linear):
        def forward(self, input: Tensor) -> Tensor:
            return super().forward(input) * 2

    model.lm_head = Doubled(16, VOCAB_SIZE, bias=False)


def smooth(model: SmhtForCausalLM) -> None:
    def loss(logits: Tensor, labels: Tensor, **_: Any) -> Tensor:
        return F.cross_entropy(logits[:, :-1].flatten(0, 1), labels[:, 1:].flatten(), label_smoothing=0.3)

    model.loss_function = loss


@pytest.mark.parametrize("change", [hook, replace_forward, add_bias, subclass, smooth])
def test_where_it_would_show_the_plain_path_is_taken(
    change: Callable[[SmhtForCausalLM], None], fused_calls: list[tuple[int, ...]]
) -> None:
    model = tiny_model(tie_word_embeddings=False, use_cache=False)
    untouched = model(TOKENS, labels=LABELS).loss
    change(model)
    output = model(TOKENS, labels=LABELS, skip_logits=True)
    assert output.logits is None and not fused_calls
    assert torch.equal(output.loss, model(TOKENS, labels=LABELS).loss)
    assert not torch.equal(output.loss, untouched)


def test_labels_that_leave_nothing_to_learn_are_refused_as_ever() -> None:
    with refused("every label is -100 or comes first"):
        tiny_model()(TOKENS, labels=torch.full_like(LABELS, IGNORED), skip_logits=True)


def test_a_label_outside_the_vocabulary_is_refused() -> None:
    with refused(f"label {VOCAB_SIZE} is outside the vocabulary of {VOCAB_SIZE} tokens"):
        tiny_model()(TOKENS, labels=torch.full_like(LABELS, VOCAB_SIZE), skip_logits=True)


@pytest.mark.parametrize("options", [{}, {"num_items_in_batch": 5}])
def test_a_target_of_two_stacks_likewise(options: dict[str, Any], fused_calls: list[tuple[int, ...]]) -> None:
    model = tiny_seq2seq()
    labels = LABELS.sort(descending=True).values
    given = {"input_ids": TOKENS, "labels": labels, **options}
    expected = loss_and_gradients(model, **given)
    assert model(**given).logits.shape == (3, 9, VOCAB_SIZE) and not fused_calls
    assert_all_close(loss_and_gradients(model, **given, skip_logits=True), expected, tolerance=1e-5)
    assert model(**given, skip_logits=True).logits is None and fused_calls == [(27, 16)] * 2
    model.lm_head.register_forward_hook(lambda *arguments: arguments[-1] * 2)
    doubled = model(**given, skip_logits=True)
    assert doubled.logits is None and len(fused_calls) == 2
    assert torch.equal(doubled.loss, model(**given).loss) and not torch.equal(doubled.loss, expected[0])


@pytest.mark.filterwarnings("ignore::DeprecationWarning:torch")
def test_compiles_into_one_graph() -> None:
    model = tiny_model(use_cache=False, num_hidden_layers=1)
    torch._dynamo.reset()
    compiled = torch.compile(model, fullgraph=True, backend="aot_eager")
    given = {"input_ids": TOKENS, "labels": LABELS, "skip_logits": True}
    loss = compiled(**given).loss
    gradients = torch.autograd.grad(loss, list(model.parameters()))
    assert_all_close([loss.detach(), *gradients], loss_and_gradients(model, **given), tolerance=1e-4)
