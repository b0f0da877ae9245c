"""`SmhtForSeq2SeqLM`: losses, what the decoder reads, outputs, tied embeddings, saving."""

from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor
from transformers import AutoModel, AutoModelForSeq2SeqLM, DataCollatorForSeq2Seq

from helpers.errors import refused
from helpers.hugging_face import (
    ARCHITECTURES,
    TWO_STACKS,
    VOCAB_SIZE,
    left_padded,
    random_tokens,
    right_padded,
    tiny,
    tiny_seq2seq,
)
from smht import SmhtForSeq2SeqLM, SmhtModel
from smht.models.cache_argument import CACHE_ARGUMENT
from smht.models.labels import IGNORED, shift_right
from smht.tokenization import build_tokenizer

every_architecture = pytest.mark.parametrize("architecture", ARCHITECTURES)
SOURCE = random_tokens(2, 7)
LABELS = torch.tensor([[5, 9, 30, 2], [8, 2, IGNORED, IGNORED]])


@every_architecture
def test_loss_is_the_mean_cross_entropy_of_the_labels_that_count(architecture: str) -> None:
    model = tiny_seq2seq(architecture).double()
    outputs = model(SOURCE, labels=LABELS)
    read = torch.tensor([[1, 5, 9, 30], [1, 8, 2, 0]])
    logits = model(SOURCE, decoder_input_ids=read).logits
    assert torch.equal(outputs.logits, logits)
    scored = [(0, 0, 5), (0, 1, 9), (0, 2, 30), (0, 3, 2), (1, 0, 8), (1, 1, 2)]
    expected = -torch.stack([logits[row, place].log_softmax(-1)[label] for row, place, label in scored]).mean()
    # transformers computes losses in float32.
    torch.testing.assert_close(outputs.loss.double(), expected, rtol=1e-6, atol=1e-6)
    torch.testing.assert_close(
        outputs.loss.double(), F.cross_entropy(logits.flatten(0, 1), LABELS.flatten()), rtol=1e-6, atol=1e-6
    )
    over_more = model(SOURCE, labels=LABELS, num_items_in_batch=12).loss
    torch.testing.assert_close(over_more, outputs.loss / 2)
    assert CACHE_ARGUMENT not in outputs and CACHE_ARGUMENT not in model(SOURCE, labels=LABELS, use_cache=True)


def test_every_parameter_learns() -> None:
    model = tiny_seq2seq("dense").double()
    model(SOURCE, labels=LABELS).loss.backward()
    assert all(parameter.grad is not None and parameter.grad.any() for parameter in model.parameters())


@torch.no_grad()
def test_labels_may_come_with_another_target_to_read() -> None:
    model = tiny_seq2seq().double()
    read = random_tokens(2, 4, seed=3)
    outputs = model(SOURCE, decoder_input_ids=read, labels=LABELS)
    assert torch.equal(outputs.logits, model(SOURCE, decoder_input_ids=read).logits)
    embedded = model.get_input_embeddings()(read)
    for given_target in ({"decoder_inputs_embeds": embedded}, {"decoder_inputs_embeds": embedded, "labels": LABELS}):
        torch.testing.assert_close(model(SOURCE, **given_target).logits, outputs.logits)


@given(
    rows=st.lists(st.lists(st.integers(0, 9) | st.just(IGNORED), min_size=4, max_size=4), min_size=1, max_size=3),
    pad=st.none() | st.integers(0, 9),
)
def test_the_decoder_reads_the_labels_one_place_later(rows: list[list[int]], pad: int | None) -> None:
    labels = torch.tensor(rows)
    filler = 7 if pad is None else pad
    expected = [[7, *(filler if label == IGNORED else label for label in row[:-1])] for row in rows]
    assert shift_right(labels, 7, pad).tolist() == expected
    assert labels.tolist() == rows


def test_what_the_collator_of_transformers_makes() -> None:
    tokenizer = build_tokenizer("byte", None)
    tokenizer.padding_side = "right"
    special = {"bos_token_id": tokenizer.bos_token_id, "pad_token_id": tokenizer.pad_token_id}
    model = tiny_seq2seq(vocab_size=259, **special)
    rows = [{"input_ids": [104, 105], "labels": [97, 98, 99]}, {"input_ids": [105, 106, 107], "labels": [100]}]
    batch = DataCollatorForSeq2Seq(tokenizer, model=model)(rows)
    start, pad = tokenizer.bos_token_id, tokenizer.pad_token_id
    assert batch["decoder_input_ids"].tolist() == [[start, 97, 98], [start, 100, pad]]
    assert torch.equal(model(**batch).loss, model(**{**batch, "decoder_input_ids": None}).loss)


@pytest.mark.parametrize("pattern", [{}, {"attention_pattern": "block_sparse", "sparse_block_size": 3}], ids=str)
@pytest.mark.parametrize("encoding", ["learned", "sinusoidal", "relative", "rotary", "none"])
@torch.no_grad()
def test_padding_of_source_and_target_changes_no_logit(encoding: str, pattern: dict[str, Any]) -> None:
    model = tiny_seq2seq(position_embedding=encoding, **pattern).double()
    target = random_tokens(2, 5, seed=1)
    expected = model(SOURCE, decoder_input_ids=target).logits
    for pad_source in (left_padded, right_padded):
        source, mask = pad_source(SOURCE, 3)
        ours = model(source, attention_mask=mask, decoder_input_ids=target).logits
        torch.testing.assert_close(ours, expected, rtol=0, atol=1e-10)
        padded, target_mask = left_padded(target, 2)
        given_target = {"decoder_input_ids": padded, "decoder_attention_mask": target_mask}
        ours = model(source, attention_mask=mask, **given_target).logits[:, 2:]
        torch.testing.assert_close(ours, expected, rtol=0, atol=1e-10)


@torch.no_grad()
def test_embeddings_and_positions_may_be_given() -> None:
    model = tiny_seq2seq().double()
    target = random_tokens(2, 5, seed=1)
    expected = model(SOURCE, decoder_input_ids=target).logits
    embedded = model.get_input_embeddings()(SOURCE)
    torch.testing.assert_close(model(inputs_embeds=embedded, decoder_input_ids=target).logits, expected)
    places = {"position_ids": torch.arange(7)[None], "decoder_position_ids": torch.arange(5)[None]}
    torch.testing.assert_close(model(SOURCE, decoder_input_ids=target, **places).logits, expected)
    for name, place in places.items():
        moved = model(SOURCE, decoder_input_ids=target, **{**places, name: place + 1}).logits
        assert (moved - expected).abs().max() > 1e-3


def shapes(tensors: Any) -> list[tuple[int, ...]]:
    return [tuple(tensor.shape) for tensor in tensors]


@every_architecture
@torch.no_grad()
def test_outputs_have_the_shapes_and_the_order_of_transformers(architecture: str) -> None:
    model = tiny_seq2seq(architecture, num_decoder_layers=2, attn_implementation="eager").double()
    read = {"decoder_input_ids": LABELS.clamp_min(0)}
    options: dict[str, Any] = {"output_attentions": True, "output_hidden_states": True, **read}
    outputs = model(SOURCE, **options)
    assert shapes(outputs.decoder_hidden_states) == [(2, 4, 16)] * 3
    assert shapes(outputs.encoder_hidden_states) == [(2, 7, 16)] * 4
    assert shapes(outputs.decoder_attentions) == [(2, 4, 4, 4)] * 2
    assert shapes(outputs.cross_attentions) == [(2, 4, 4, 7)] * 2
    assert shapes(outputs.encoder_attentions) == [(2, 4, 7, 7)] * 3
    for weights in (*outputs.decoder_attentions, *outputs.cross_attentions, *outputs.encoder_attentions):
        torch.testing.assert_close(weights.sum(-1), torch.ones(weights.shape[:-1], dtype=torch.float64))
    assert all(torch.equal(weights, weights.tril()) for weights in outputs.decoder_attentions)
    assert all((weights > 0).all() for weights in (*outputs.cross_attentions, *outputs.encoder_attentions))
    assert torch.equal(outputs.encoder_hidden_states[-1], outputs.encoder_last_hidden_state)
    assert torch.equal(model.lm_head(outputs.decoder_hidden_states[-1]), outputs.logits)
    as_tuple = model(SOURCE, return_dict=False, **options)
    assert isinstance(as_tuple, tuple) and torch.equal(as_tuple[0], outputs.logits)
    assert len(as_tuple) == len(outputs.to_tuple())
    base = model.model(SOURCE, return_dict=False, use_cache=False, **read)
    assert shapes(base) == [(2, 4, 16), (2, 7, 16)]


@torch.no_grad()
def test_weights_are_those_of_the_attention_they_are_named_after() -> None:
    model = tiny_seq2seq("split", attn_implementation="eager").double()
    target, mask = random_tokens(2, 4), torch.ones(2, 7, dtype=torch.long)
    mask[:, 5:] = 0
    outputs = model(SOURCE, attention_mask=mask, decoder_input_ids=target, output_attentions=True)
    for weights in (*outputs.cross_attentions, *outputs.encoder_attentions):
        assert not weights[..., 5:].any() and weights[..., :5].all()
    assert all(weights[..., -1, :].all() for weights in outputs.decoder_attentions)


@pytest.mark.parametrize("tied", [False, True])
@every_architecture
def test_source_target_and_head_may_share_one_table(architecture: str, tied: bool, tmp_path: Path) -> None:
    model = tiny_seq2seq(architecture, tie_word_embeddings=tied)
    table = model.model.encoder.embed_tokens.weight
    assert model.get_input_embeddings().weight is table
    assert (model.lm_head.weight is table) == tied
    assert not any("decoder.embed_tokens" in name for name, _ in model.named_parameters())
    model.save_pretrained(tmp_path)
    loaded, report = SmhtForSeq2SeqLM.from_pretrained(tmp_path, output_loading_info=True)
    assert not any(report.values())
    assert (loaded.lm_head.weight is loaded.model.encoder.embed_tokens.weight) == tied
    assert torch.equal(loaded(SOURCE, labels=LABELS).logits, model(SOURCE, labels=LABELS).logits)


@pytest.mark.parametrize("tied", [False, True])
@pytest.mark.parametrize("vocab_size", [32, 50])
@torch.no_grad()
def test_vocabulary_can_grow_and_shrink(vocab_size: int, tied: bool) -> None:
    model = tiny_seq2seq(tie_word_embeddings=tied)
    source = SOURCE % 32
    before = model(source, labels=LABELS).logits
    model.resize_token_embeddings(vocab_size)
    after = model(source, labels=LABELS).logits
    assert after.shape[-1] == model.config.vocab_size == vocab_size
    kept = min(vocab_size, VOCAB_SIZE)
    assert torch.equal(after[..., :kept], before[..., :kept])
    assert (model.lm_head.weight is model.model.encoder.embed_tokens.weight) == tied
    last = torch.full_like(source, vocab_size - 1)
    assert model(last, labels=last).loss.isfinite()


@every_architecture
@pytest.mark.usefixtures("silent_transformers")
def test_a_saved_model_comes_back_through_the_auto_classes(architecture: str, tmp_path: Path) -> None:
    model = tiny_seq2seq(architecture, num_decoder_layers=2)
    model.save_pretrained(tmp_path)
    loaded, report = AutoModelForSeq2SeqLM.from_pretrained(tmp_path, output_loading_info=True)
    assert type(loaded) is SmhtForSeq2SeqLM and not any(report.values())
    assert torch.equal(loaded(SOURCE, labels=LABELS).logits, model(SOURCE, labels=LABELS).logits)
    assert loaded.generation_config.decoder_start_token_id == 1
    base, report = AutoModel.from_pretrained(tmp_path, output_loading_info=True)
    assert type(base) is SmhtModel and not any(report.values())
    target = {"decoder_input_ids": LABELS.clamp_min(0)}
    assert torch.equal(base(SOURCE, **target).last_hidden_state, model.model(SOURCE, **target).last_hidden_state)
    assert type(AutoModelForSeq2SeqLM.from_config(model.config)) is SmhtForSeq2SeqLM


def test_a_target_is_needed() -> None:
    with refused("an encoder_decoder needs a target: give labels or decoder_input_ids"):
        tiny_seq2seq()(SOURCE)
    with refused("give exactly one of input_ids and inputs_embeds"):
        tiny(SmhtModel, **TWO_STACKS)(SOURCE)


def test_labels_that_all_do_not_count_are_refused() -> None:
    with refused("every label is -100, so there is nothing to learn from"):
        tiny_seq2seq()(SOURCE, labels=torch.full_like(LABELS, IGNORED))


def test_without_a_start_token_labels_cannot_be_read() -> None:
    model = tiny_seq2seq(bos_token_id=None)
    with refused("set decoder_start_token_id or bos_token_id in the configuration"):
        model(SOURCE, labels=LABELS)
    read: dict[str, Tensor] = {"decoder_input_ids": LABELS.clamp_min(0)}
    assert model(SOURCE, labels=LABELS, **read).loss.isfinite()
    started = tiny_seq2seq(bos_token_id=None, decoder_start_token_id=6)
    assert started.prepare_decoder_input_ids_from_labels(LABELS)[:, 0].tolist() == [6, 6]
    assert tiny_seq2seq(bos_token_id=3).config.decoder_start_token_id == 3


@pytest.mark.parametrize("number", [VOCAB_SIZE, -1])
def test_tokens_outside_the_vocabulary_are_refused_in_either_text(number: int) -> None:
    wrong = torch.full_like(SOURCE, number)
    for texts in ({"input_ids": wrong, "decoder_input_ids": SOURCE}, {"input_ids": SOURCE, "decoder_input_ids": wrong}):
        with refused(f"token id {number} is outside the vocabulary of {VOCAB_SIZE} tokens"):
            tiny_seq2seq()(**texts)


def test_targets_padded_on_the_left_are_refused() -> None:
    model = tiny_seq2seq()
    source = random_tokens()
    with refused("padded on the right", "begins with -100"):
        model(source, labels=torch.tensor([[5, 6, 7], [-100, 5, 6]]))
    model(source, labels=torch.tensor([[5, 6, 7], [-100, -100, -100]]))
