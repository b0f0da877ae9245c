import math
from itertools import pairwise
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn

from helpers.errors import refused
from smht.models import SmhtConfig, SmhtForCausalLM
from smht.tasks import token_stream
from smht.tasks.corpus import Corpus, Document
from smht.tasks.token_stream import (
    IGNORED,
    Evaluation,
    TokenStream,
    TrainingWindows,
    collate,
    count_windows,
    evaluate,
    tokenize,
)
from smht.tokenization import BOS_ID, EOS_ID, build_tokenizer

VOCAB = 259
POSITIONS = 16


@pytest.fixture(scope="module")
def model() -> SmhtForCausalLM:
    torch.manual_seed(0)
    config = SmhtConfig(
        vocab_size=VOCAB,
        hidden_size=8,
        num_hidden_layers=1,
        num_attention_heads=2,
        max_position_embeddings=POSITIONS,
        hidden_dropout=0.5,
    )
    return SmhtForCausalLM(config).double().eval()


def random_stream(length: int, seed: int = 0) -> TokenStream:
    """One document of random bytes, `length` tokens with its begin and end tokens."""
    text = np.random.default_rng(seed).integers(0, 256, max(0, length - 2))
    return TokenStream(np.array([BOS_ID, *text, EOS_ID][:length], np.uint16), len(text))


def stream_of(*documents: bytes) -> TokenStream:
    corpus = Corpus("test", (), tuple(Document(f"{i}.txt", data) for i, data in enumerate(documents)))
    return tokenize(build_tokenizer("byte", None), corpus)


# The stream


def test_every_document_lies_between_a_begin_and_an_end_token() -> None:
    stream = stream_of(b"ab", b"\xff", "é".encode())
    assert stream.ids.tolist() == [BOS_ID, 97, 98, EOS_ID, BOS_ID, 255, EOS_ID, BOS_ID, 195, 169, EOS_ID]
    assert stream.ids.dtype == np.uint16
    assert stream.num_bytes == 5
    assert len(stream) == 11


def test_bytes_are_those_of_the_text_whatever_the_tokens() -> None:
    data = "naïve naïve naïve naïve".encode()
    tokenizer = build_tokenizer("bpe", [data.decode()], 264)
    stream = tokenize(tokenizer, Corpus("test", (), (Document("a.txt", data),)))
    assert len(stream) < len(data)
    assert stream.num_bytes == len(data)


def test_text_that_is_not_utf8_is_refused_by_name_or_replaced() -> None:
    corpus = Corpus("test", (), (Document("good.txt", b"good"), Document("bad.txt", b"x\xff")))
    tokenizer = build_tokenizer("char", ["good \ufffd"])
    with refused("bad.txt", "0xff"):
        tokenize(tokenizer, corpus)
    replaced = tokenize(tokenizer, corpus, errors="replace")
    assert replaced.ids[-3:-1].tolist() == [ord("x"), tokenizer("\ufffd")["input_ids"][0]]


# Training windows


def counting_windows(length: int, context: int, seed: int = 0, number: int = 1000) -> TrainingWindows:
    """Windows of a stream whose tokens are their own places."""
    return TrainingWindows(TokenStream(np.arange(1000, 1000 + length, dtype=np.uint32), length), context, seed, number)


@given(st.integers(2, 60), st.integers(1, 12), st.integers(0, 5))
def test_a_pass_covers_the_stream_once(length: int, context: int, seed: int) -> None:
    if length <= context:
        length += context
    windows = counting_windows(length, context, seed)
    per_pass = windows.windows_per_epoch
    assert per_pass == (length - 1) // context
    for number in range(2):
        taken = [windows[number * per_pass + i]["input_ids"] for i in range(per_pass)]
        assert all(len(ids) == context for ids in taken)
        places = sorted(torch.cat(taken).tolist())
        # One unbroken stretch, of which no token comes twice and fewer than a window's are left out.
        assert places == list(range(places[0], places[0] + per_pass * context))
        assert places[0] >= 1000
        assert length - 1 - len(places) < context


def test_labels_are_the_next_tokens() -> None:
    windows = counting_windows(50, 7)
    for i in range(20):
        window = windows[i]
        assert window["input_ids"].dtype == window["labels"].dtype == torch.int64
        assert torch.equal(window["labels"], window["input_ids"] + 1)


def test_begin_tokens_are_read_but_not_learned_and_end_tokens_are() -> None:
    window = TrainingWindows(stream_of(b"ab", b"c"), 6, 0, 1)[0]
    assert window["input_ids"].tolist() == [BOS_ID, 97, 98, EOS_ID, BOS_ID, 99]
    assert window["labels"].tolist() == [97, 98, EOS_ID, IGNORED, 99, EOS_ID]


def orders(windows: TrainingWindows, passes: int) -> list[list[int]]:
    per_pass = windows.windows_per_epoch
    return [[int(windows[p * per_pass + i]["input_ids"][0]) for i in range(per_pass)] for p in range(passes)]


def test_each_pass_has_its_own_order_and_start() -> None:
    passes = orders(counting_windows(400, 13), 12)
    assert len({tuple(order) for order in passes}) == 12
    assert all(order != sorted(order) for order in passes)
    starts = {min(order) for order in passes}
    assert len(starts) > 3
    assert starts <= set(range(1000, 1013))


def test_every_start_is_drawn_up_to_the_last_that_fits() -> None:
    # 9 tokens hold 2 windows of 3 with the token after each, beginning at 0, 1 or 2.
    assert {min(order) for order in orders(counting_windows(9, 3), 60)} == {1000, 1001, 1002}


def test_the_seed_decides_the_order() -> None:
    assert orders(counting_windows(400, 13, seed=3), 3) == orders(counting_windows(400, 13, seed=3), 3)
    assert orders(counting_windows(400, 13, seed=3), 3) != orders(counting_windows(400, 13, seed=4), 3)


def test_a_window_depends_on_its_number_alone() -> None:
    short, long = counting_windows(100, 7, number=30), counting_windows(100, 7, number=5000)
    in_order = [short[i]["input_ids"].tolist() for i in range(30)]
    order = np.random.default_rng(0).permutation(30).tolist()
    assert {i: long[i]["input_ids"].tolist() for i in order} == dict(enumerate(in_order))


def test_iteration_ends() -> None:
    windows = counting_windows(20, 7, number=5)
    assert len(windows) == 5
    assert sum(1 for _ in zip(windows, range(100), strict=False)) == 5
    for beyond in (-1, 5):
        with pytest.raises(IndexError, match=str(beyond)):
            windows[beyond]


def test_exactly_one_block() -> None:
    windows = counting_windows(8, 7)
    assert windows.windows_per_epoch == 1
    for i in range(3):
        assert windows[i]["input_ids"].tolist() == list(range(1000, 1007))


def test_text_shorter_than_a_block_is_refused() -> None:
    with refused("7 tokens", "one block of 8", "--context"):
        counting_windows(7, 7)
    with refused("fewer than one block"):
        count_windows(random_stream(3), 3)


def test_a_batch_trains_on_every_label(model: SmhtForCausalLM) -> None:
    windows = TrainingWindows(random_stream(100), POSITIONS, 0, 3)
    batch = collate([windows[i] for i in range(3)])
    inputs, labels = batch["input_ids"], batch["shift_labels"]
    assert isinstance(inputs, Tensor) and isinstance(labels, Tensor)
    assert inputs.shape == labels.shape == (3, POSITIONS)
    assert model(**batch).get("logits") is None
    output = model(**{**batch, "skip_logits": False})
    torch.testing.assert_close(model(**batch).loss, output.loss, rtol=1e-6, atol=0)
    log_probabilities = output.logits.log_softmax(-1)
    expected = -torch.stack([log_probabilities[b, t, labels[b, t]] for b in range(3) for t in range(POSITIONS)]).mean()
    torch.testing.assert_close(output.loss, expected, rtol=1e-6, atol=0, check_dtype=False)
    assert output.get("cache") is None and output.get("past_key_values") is None


# Evaluation


def surprise(model: nn.Module, seen: np.ndarray, token: int) -> float:
    with torch.no_grad():
        logits = model(input_ids=torch.tensor([seen.astype(np.int64).tolist()])).logits
    return -float(logits[0, -1].double().log_softmax(-1)[token])


def nats_token_by_token(model: nn.Module, stream: TokenStream, context: int, stride: int) -> float:
    """Every text token alone, from the beginning of the first window that reaches it."""
    total = 0.0
    for place in range(1, len(stream)):
        token = int(stream.ids[place])
        if token < 256:
            window = max(0, math.ceil((place - context) / stride))
            total += surprise(model, stream.ids[window * stride : place], token)
    return total


@pytest.mark.parametrize(
    ("length", "context", "stride"),
    [
        (49, 16, 16),
        (50, 16, 16),
        (48, 16, 16),
        (45, 16, 5),
        (40, 10, 3),
        (40, 10, 9),
        (41, 8, 4),
        (30, 12, 1),
        (12, 16, 16),
        (12, 16, 4),
        (17, 16, 1),
        (18, 16, 7),
        (3, 16, 2),
        (20, 1, 1),
    ],
)
def test_it_is_what_predicting_token_by_token_gives(
    model: SmhtForCausalLM, length: int, context: int, stride: int
) -> None:
    stream = random_stream(length)
    result = evaluate(model, stream, context, stride)
    assert result.nats == pytest.approx(nats_token_by_token(model, stream, context, stride), rel=1e-6)
    assert result.tokens == result.bytes == length - 2


def test_windows_are_disjoint_unless_a_stride_is_given(model: SmhtForCausalLM) -> None:
    stream = random_stream(60)
    assert evaluate(model, stream, 8) == evaluate(model, stream, 8, 8)
    assert evaluate(model, stream, 8).nats != pytest.approx(evaluate(model, stream, 8, 4).nats, rel=1e-6)


def test_a_stride_of_one_predicts_from_the_full_context(model: SmhtForCausalLM) -> None:
    stream, context = random_stream(40), 9
    places = range(1, 39)
    expected = sum(surprise(model, stream.ids[max(0, p - context) : p], int(stream.ids[p])) for p in places)
    assert evaluate(model, stream, context, 1).nats == pytest.approx(expected, rel=1e-6)


def test_begin_and_end_tokens_are_seen_but_do_not_count(model: SmhtForCausalLM) -> None:
    stream = stream_of(b"ab", b"cde", b"f")
    result = evaluate(model, stream, POSITIONS)
    places = [p for p, token in enumerate(stream.ids) if token < 256]
    expected = sum(surprise(model, stream.ids[:p], int(stream.ids[p])) for p in places)
    assert (result.tokens, result.bytes) == (6, 6)
    assert result.nats == pytest.approx(expected, rel=1e-6)


class Places(nn.Module):
    """A stand-in for a model of streams whose tokens are their own places; remembers what it was asked.

    The next place is as likely as all others together.
    """

    def __init__(self, vocab_size: int) -> None:
        super().__init__()
        self.config = SimpleNamespace(vocab_size=vocab_size)
        self.weight = nn.Parameter(torch.zeros(()))
        self.asked: list[Tensor] = []

    def forward(self, input_ids: Tensor, shift_labels: Tensor, **options: Any) -> SimpleNamespace:
        assert not options["use_cache"] and options["num_items_in_batch"] == 1
        assert not self.training
        self.asked.append(input_ids)
        logits = torch.zeros(*input_ids.shape, self.config.vocab_size)
        following = (input_ids + 1).clamp(max=self.config.vocab_size - 1)
        logits.scatter_(-1, following[..., None], math.log(self.config.vocab_size - 1))
        return SimpleNamespace(loss=F.cross_entropy(logits.flatten(0, 1), shift_labels.flatten(), reduction="sum"))


@given(length=st.integers(2, 200), context=st.integers(1, 40), data=st.data())
def test_every_text_token_is_predicted_once(length: int, context: int, data: st.DataObject) -> None:
    stride = data.draw(st.integers(1, context))
    model = Places(256)
    stream = TokenStream(np.arange(length, dtype=np.uint16), length)
    result = evaluate(model, stream, context, stride)
    # A token that were predicted twice, left out, or predicted from a place that does not precede it, would show.
    assert result.tokens == length - 1
    assert result.nats == pytest.approx((length - 1) * math.log(2), rel=1e-5)
    rows = [row for batch in model.asked for row in batch.tolist()]
    assert all(len(row) <= context for row in rows)
    starts = [row[0] for row in rows]
    assert starts == list(range(0, stride * len(rows), stride))
    ends = [row[-1] for row in rows]
    assert all(later > earlier for earlier, later in pairwise(ends)), "a window that predicts nothing new"
    assert ends[-1] == length - 2


@given(length=st.integers(12, 200), context=st.integers(1, 10), data=st.data())
def test_a_part_is_whole_windows_spread_over_the_stream(length: int, context: int, data: st.DataObject) -> None:
    whole = (length - 1) // context
    count = data.draw(st.integers(1, whole))
    model = Places(256)
    stream = TokenStream(np.arange(length, dtype=np.uint16), 3 * length)
    result = evaluate(model, stream, context, windows=count)
    rows = [row for batch in model.asked for row in batch.tolist()]
    if count == whole:
        assert result == evaluate(model, stream, context)
        return
    assert [len(row) for row in rows] == [context] * count
    starts = [row[0] // context for row in rows]
    gaps = [later - earlier for earlier, later in pairwise([*starts, whole])]
    assert starts[0] == 0 and max(gaps) - min(gaps) <= 1
    assert result.tokens == count * context
    assert result.bytes == round(3 * result.tokens)
    assert result.loss == pytest.approx(math.log(2), rel=1e-5)


def test_batches_of_any_size_give_the_same(model: SmhtForCausalLM, monkeypatch: pytest.MonkeyPatch) -> None:
    stream = random_stream(100)
    expected = evaluate(model, stream, 8, 3)
    sizes = set()

    def note(_: nn.Module, __: object, arguments: dict[str, Tensor]) -> None:
        sizes.add(len(arguments["input_ids"]))

    with model.register_forward_pre_hook(note, with_kwargs=True):
        for windows in (0, 1, 2, 7, 1000):
            monkeypatch.setattr(token_stream, "_EVALUATION_LOGITS", windows * VOCAB * 8)
            result = evaluate(model, stream, 8, 3)
            assert result.nats == pytest.approx(expected.nats, rel=1e-6)
            assert result.tokens == expected.tokens
    assert {1, 2, 7} < sizes
    assert max(sizes) > 7


@pytest.mark.parametrize("training", [True, False])
def test_the_model_is_evaluated_without_dropout_and_left_as_it_was(model: SmhtForCausalLM, training: bool) -> None:
    stream = random_stream(40)
    expected = evaluate(model.eval(), stream, 8)
    try:
        model.train(training)
        assert evaluate(model, stream, 8) == expected
        assert model.training is training
        with refused("position"):
            evaluate(model, stream, POSITIONS + 1)
        assert model.training is training
        assert all(parameter.grad is None for parameter in model.parameters())
    finally:
        model.eval()


def test_half_precision_logits_are_summed_in_single_precision(model: SmhtForCausalLM) -> None:
    stream = random_stream(200)
    rounded = SmhtForCausalLM(model.config).to(torch.bfloat16).eval()
    rounded.load_state_dict(model.state_dict())
    result = evaluate(rounded, stream, POSITIONS)
    assert result.loss == pytest.approx(evaluate(model, stream, POSITIONS).loss, rel=0.01)
    # A sum of 198 losses in bfloat16 would be a multiple of 4.
    assert result.nats % 4 != 0


@pytest.mark.parametrize("stride", [0, -1, 9])
def test_a_stride_outside_the_window_is_refused(model: SmhtForCausalLM, stride: int) -> None:
    with refused(f"stride = {stride}", "context of 8"):
        evaluate(model, random_stream(40), 8, stride)


def test_the_metrics() -> None:
    result = Evaluation(nats=12 * math.log(2), tokens=4, bytes=8)
    assert result.loss == pytest.approx(3 * math.log(2))
    assert result.perplexity == pytest.approx(8)
    assert result.bits_per_byte == pytest.approx(1.5)


def test_a_uniform_model_of_bytes_needs_eight_bits_a_byte() -> None:
    class Uniform(Places):
        def forward(self, input_ids: Tensor, shift_labels: Tensor, **_: Any) -> SimpleNamespace:
            logits = torch.zeros(input_ids.numel(), 256)
            return SimpleNamespace(loss=F.cross_entropy(logits, shift_labels.flatten(), reduction="sum"))

    result = evaluate(Uniform(256), random_stream(300), 50)
    assert result.bits_per_byte == pytest.approx(8)
    assert result.perplexity == pytest.approx(256, rel=1e-5)


def test_perplexity_that_overflows_is_infinite() -> None:
    assert Evaluation(nats=1e6, tokens=10, bytes=10).perplexity == math.inf
    assert math.isfinite(Evaluation(nats=690, tokens=1, bytes=1).perplexity)
