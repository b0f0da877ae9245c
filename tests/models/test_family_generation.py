"""`generate` with every position encoding and pattern, for decoders and encoder-decoders: caches, padding, beams."""

import functools
import itertools
from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import DynamicCache, EncoderDecoderCache

from helpers.hugging_face import left_padded, random_tokens, right_padded, tiny_model, tiny_seq2seq
from smht import SmhtForCausalLM, SmhtForSeq2SeqLM
from smht.layers.block import NORM_PLACEMENTS
from smht.layers.position import POSITION_ENCODINGS
from smht.models.cache_argument import CACHE_ARGUMENT
from smht.models.model import SmhtEncoder

pytestmark = pytest.mark.usefixtures("silent_transformers")
PATTERNS = ["full", "block_sparse"]
every_encoding = pytest.mark.parametrize("encoding", POSITION_ENCODINGS)
every_pattern = pytest.mark.parametrize("pattern", PATTERNS)

CACHES: dict[str, dict[str, Any]] = {
    "dynamic cache": {},
    "no cache": {"use_cache": False},
    # Compilation is for test_family_compilation.
    "static cache": {"cache_implementation": "static", "disable_compile": True},
}
every_cache = pytest.mark.parametrize("cache", CACHES)
PATHS = [
    (encoding, pattern, NORM_PLACEMENTS[number // 2 % 2], ["sdpa", "eager"][number % 2], cache)
    for number, (pattern, encoding, cache) in enumerate(itertools.product(PATTERNS, POSITION_ENCODINGS, CACHES))
]
"""All values meet in threes, but for an encoding, a placement and a cache, which meet in twos."""

every_path = pytest.mark.parametrize(("encoding", "pattern", "placement", "implementation", "cache"), PATHS)
NEW_TOKENS = 7
"""Enough to begin a third sparse block of three tokens."""


def fields(encoding: str, pattern: str, placement: str = "pre", implementation: str = "sdpa") -> dict[str, Any]:
    sparse = {"sparse_block_size": 3} if pattern == "block_sparse" else {}
    return {
        "num_hidden_layers": 2,  # channels are dealt between two blocks
        "tie_word_embeddings": False,  # with a tied head texts repeat one token
        "position_embedding": encoding,
        "attention_pattern": pattern,
        "norm_placement": placement,
        "attn_implementation": implementation,
        **sparse,
    }


@torch.no_grad()
def greedy(model: SmhtForCausalLM, prompt: Tensor, new_tokens: int = NEW_TOKENS) -> Tensor:
    """The most likely next token, again and again, each from a forward pass over everything."""
    for _ in range(new_tokens):
        best = model(prompt, use_cache=False).logits[:, -1:].argmax(-1)
        prompt = torch.cat([prompt, best], 1)
    return prompt


@torch.no_grad()
def greedy_target(model: SmhtForSeq2SeqLM, source: Tensor, new_tokens: int = NEW_TOKENS) -> Tensor:
    """The same for the target of a source without padding, from the start token."""
    target = torch.ones(source.shape[0], 1, dtype=torch.long)
    for _ in range(new_tokens):
        best = model(source, decoder_input_ids=target, use_cache=False).logits[:, -1:].argmax(-1)
        target = torch.cat([target, best], 1)
    return target


def assert_greedy(produced: Any, logits: Tensor) -> None:
    """Each new token is the most likely one, and was chosen by these logits `[B, T, V]`.

    Args:
        produced: what `generate` gave with `output_logits`.
        logits: of the new tokens, from one forward pass over everything.
    """
    # `generate` rounds them to float32.
    torch.testing.assert_close(torch.stack(produced.logits, 1), logits.float(), rtol=1e-6, atol=1e-6)
    assert torch.equal(produced.sequences[:, -NEW_TOKENS:], logits.argmax(-1))


GREEDY: dict[str, Any] = {
    "do_sample": False,
    "max_new_tokens": NEW_TOKENS,
    "output_logits": True,
    "return_dict_in_generate": True,
}


@every_path
@torch.no_grad()
def test_decoders_write_the_same_with_any_cache(
    encoding: str, pattern: str, placement: str, implementation: str, cache: str
) -> None:
    model = tiny_model(**fields(encoding, pattern, placement, implementation)).double()
    produced = model.generate(random_tokens(2, 5), **GREEDY, **CACHES[cache])
    assert_greedy(produced, model(produced.sequences[:, :-1], use_cache=False).logits[:, 4:])


@every_path
@torch.no_grad()
def test_encoder_decoders_write_the_same_with_any_cache(
    encoding: str, pattern: str, placement: str, implementation: str, cache: str
) -> None:
    model = tiny_seq2seq(**fields(encoding, pattern, placement, implementation)).double()
    source = random_tokens(2, 7)
    produced = model.generate(source, attention_mask=torch.ones_like(source), **GREEDY, **CACHES[cache])
    assert (produced.sequences[:, 0] == 1).all()
    logits = model(source, decoder_input_ids=produced.sequences[:, :-1], use_cache=False).logits
    assert_greedy(produced, logits)


ROWS = [random_tokens(1, length, seed=length) for length in (2, 5, 7)]


def padded_rows(pad: Any) -> tuple[Tensor, Tensor]:
    """The rows as one batch, and its attention mask."""
    rows = [pad(row, 7 - row.shape[1]) for row in ROWS]
    return torch.cat([ids for ids, _ in rows]), torch.cat([mask for _, mask in rows])


@functools.cache
def texts_of_rows(encoding: str, pattern: str) -> tuple[SmhtForCausalLM, list[Tensor]]:
    """A model, and how it goes on after each row alone."""
    model = tiny_model(**fields(encoding, pattern)).double()
    return model, [greedy(model, row)[0] for row in ROWS]


@functools.cache
def targets_of_rows(encoding: str, pattern: str) -> tuple[SmhtForSeq2SeqLM, Tensor]:
    """A model, and the targets that it writes for each row alone."""
    model = tiny_seq2seq(**fields(encoding, pattern)).double()
    return model, torch.cat([greedy_target(model, row) for row in ROWS])


@every_encoding
@every_pattern
@every_cache
def test_decoders_take_prompts_padded_on_the_left(encoding: str, pattern: str, cache: str) -> None:
    model, texts = texts_of_rows(encoding, pattern)
    input_ids, mask = padded_rows(left_padded)
    options = {"do_sample": False, "max_new_tokens": NEW_TOKENS, "pad_token_id": 0, **CACHES[cache]}
    produced = model.generate(input_ids, attention_mask=mask, **options)
    for row, text in zip(produced, texts, strict=True):
        assert torch.equal(row[-len(text) :], text)


@every_encoding
@every_pattern
@every_cache
def test_encoder_decoders_take_sources_padded_on_either_side(encoding: str, pattern: str, cache: str) -> None:
    model, expected = targets_of_rows(encoding, pattern)
    options = {"do_sample": False, "max_new_tokens": NEW_TOKENS, **CACHES[cache]}
    for pad in (left_padded, right_padded):
        source, mask = padded_rows(pad)
        produced = model.generate(source, attention_mask=mask, **options)
        assert torch.equal(produced, expected)


@every_pattern
@pytest.mark.parametrize("encoding", ["learned", "relative", "rotary"])
def test_a_target_may_be_begun_by_the_caller(encoding: str, pattern: str) -> None:
    model = tiny_seq2seq(**fields(encoding, pattern)).double()
    source = random_tokens(2, 7)
    expected = greedy_target(model, source)
    options: dict[str, Any] = {"attention_mask": torch.ones_like(source), "do_sample": False}
    for cache in CACHES.values():
        produced = model.generate(
            source, decoder_input_ids=expected[:, :5], max_new_tokens=NEW_TOKENS - 4, **options, **cache
        )
        assert torch.equal(produced, expected)


VOCABULARY, END, LENGTH = 4, 2, 4


def every_target() -> list[list[int]]:
    """All that can follow the start token: four tokens without the end among the first three, or fewer and the end."""
    others = [token for token in range(VOCABULARY) if token != END]
    ended = [[*start, END] for size in range(LENGTH) for start in itertools.product(others, repeat=size)]
    return ended + [[*start] for start in itertools.product(others, repeat=LENGTH)]


@torch.no_grad()
def log_likelihoods(model: SmhtForSeq2SeqLM, source: Tensor, targets: list[list[int]]) -> list[float]:
    """Of each target after the start token."""
    filled = torch.tensor([target + [0] * (LENGTH - len(target)) for target in targets])
    read = torch.cat([torch.ones(len(targets), 1, dtype=torch.long), filled[:, :-1]], 1)
    logits = model(source.expand(len(targets), -1), decoder_input_ids=read, use_cache=False).logits
    chosen = logits.log_softmax(-1).gather(-1, filled[..., None])[..., 0]
    return [float(row[: len(target)].sum()) for row, target in zip(chosen, targets, strict=True)]


@pytest.mark.parametrize(
    ("encoding", "pattern", "seed"), [("sinusoidal", "full", 70), ("relative", "block_sparse", 55)]
)
@pytest.mark.parametrize("padding", [0, 2])
def test_beam_search_finds_what_enumeration_finds(encoding: str, pattern: str, seed: int, padding: int) -> None:
    special = {"vocab_size": VOCABULARY, "eos_token_id": END, "tie_word_embeddings": True}
    model = tiny_seq2seq(**{**fields(encoding, pattern), **special}, seed=seed).double()
    source, targets = torch.tensor([[3, 0, 1, 3]]), every_target()
    best = sorted(zip(log_likelihoods(model, source, targets), targets, strict=True), reverse=True)[:6]
    assert {len(target) for _, target in best} >= {2, LENGTH}, "other lengths show that the end ends a target"
    padded, mask = left_padded(source, padding)
    # As many beams as there are prefixes of one token less: nothing is pruned.
    found = model.generate(
        padded,
        attention_mask=mask,
        num_beams=VOCABULARY ** (LENGTH - 1),
        num_return_sequences=6,
        max_new_tokens=LENGTH,
        length_penalty=0.0,
        early_stopping="never",
        do_sample=False,
        return_dict_in_generate=True,
        output_scores=True,
    )
    for number, (likelihood, target) in enumerate(best):
        assert found.sequences[number, : 1 + len(target)].tolist() == [1, *target]
        assert found.sequences_scores[number].item() == pytest.approx(likelihood, abs=1e-5)


@every_encoding
@every_pattern
def test_beams_share_caches_rightly(encoding: str, pattern: str) -> None:
    model = tiny_seq2seq(**fields(encoding, pattern)).double()
    source, mask = padded_rows(left_padded)
    options = {"num_beams": 3, "do_sample": False, "max_new_tokens": 9, "num_return_sequences": 2}
    results = [model.generate(source, attention_mask=mask, **options, **cache) for cache in CACHES.values()]
    assert torch.equal(results[0], results[1]) and torch.equal(results[0], results[2])
    first, second = results[0].unflatten(0, (3, 2)).unbind(1)
    assert (first != second).any(-1).all()


@pytest.mark.parametrize("layers", [(1, 3), (3, 1), (2, None)], ids=["more in the decoder", "fewer", "not given"])
@pytest.mark.parametrize("cache_name", ["dynamic cache", "static cache"])
def test_stacks_of_different_depth(layers: tuple[int, int | None], cache_name: str) -> None:
    model = tiny_seq2seq(num_hidden_layers=layers[0], num_decoder_layers=layers[1]).double()
    assert len(model.model.encoder.layers) == layers[0]
    assert len(model.model.decoder.layers) == (layers[1] or layers[0])
    source = random_tokens(2, 7)
    produced = model.generate(
        source,
        attention_mask=torch.ones_like(source),
        do_sample=False,
        max_new_tokens=NEW_TOKENS,
        return_dict_in_generate=True,
        **CACHES[cache_name],
    )
    assert torch.equal(produced.sequences, greedy_target(model, source))
    cache = produced[CACHE_ARGUMENT]
    assert isinstance(cache, EncoderDecoderCache)
    for part in (cache.self_attention_cache, cache.cross_attention_cache):
        assert len(part.layers) == (layers[1] or layers[0])
    assert isinstance(cache.self_attention_cache, DynamicCache) == (cache_name == "dynamic cache")


@pytest.mark.parametrize("options", [*CACHES.values(), {"num_beams": 3}], ids=[*CACHES, "beams"])
def test_the_source_is_encoded_once_and_its_keys_are_projected_once(options: dict[str, Any]) -> None:
    model, calls = tiny_seq2seq(), []
    model.model.encoder.register_forward_hook(lambda *_: calls.append("encoder"))
    attention = model.model.decoder.layers[0].cross_attn
    attention.k_proj.register_forward_hook(lambda *_: calls.append("keys"))
    attention.q_proj.register_forward_hook(lambda *_: calls.append("queries"))
    source = random_tokens(2, 7)
    model.generate(source, attention_mask=torch.ones_like(source), do_sample=False, max_new_tokens=5, **options)
    assert calls.count("encoder") == 1 and calls.count("queries") == 5
    assert calls.count("keys") == (5 if options.get("use_cache") is False else 1)


def test_encoder_outputs_given_are_not_computed_again(monkeypatch: pytest.MonkeyPatch) -> None:
    model = tiny_seq2seq().double()
    source, mask = padded_rows(right_padded)
    expected = model.generate(source, attention_mask=mask, do_sample=False, max_new_tokens=5)
    encoded = model.get_encoder()(source, attention_mask=mask)
    monkeypatch.setattr(SmhtEncoder, "run", None)
    produced = model.generate(encoder_outputs=encoded, attention_mask=mask, do_sample=False, max_new_tokens=5)
    assert torch.equal(produced, expected)
    target = expected[:, :4]
    for outputs in (encoded, (encoded.last_hidden_state,)):
        logits = model(attention_mask=mask, encoder_outputs=outputs, decoder_input_ids=target).logits
        assert torch.equal(logits.argmax(-1), expected[:, 1:5])


@every_encoding
@every_pattern
@torch.no_grad()
def test_several_tokens_at_a_time_with_a_cache(encoding: str, pattern: str) -> None:
    model = tiny_model(**fields(encoding, pattern)).double()
    input_ids, mask = left_padded(random_tokens(2, 10), 2)
    whole = model(input_ids, attention_mask=mask).logits[:, 2:]
    cache, parts, end = DynamicCache(config=model.config), [], 0
    for part in input_ids.split([5, 1, 4, 2], 1):
        end += part.shape[1]
        parts.append(model(part, attention_mask=mask[:, :end], **{CACHE_ARGUMENT: cache}).logits)
    torch.testing.assert_close(torch.cat(parts, 1)[:, 2:], whole, rtol=0, atol=1e-10)


@every_encoding
@every_pattern
def test_text_ends_at_the_end_token(encoding: str, pattern: str) -> None:
    model = tiny_seq2seq(**fields(encoding, pattern)).double()
    source = random_tokens(3, 6)
    options: dict[str, Any] = {"attention_mask": torch.ones_like(source), "do_sample": False}
    free = greedy_target(model, source)
    end = int(free[1, 4])
    produced = model.generate(source, max_new_tokens=NEW_TOKENS, eos_token_id=end, **options)
    for row, text in zip(produced.tolist(), free.tolist(), strict=True):
        length = text.index(end, 1) + 1 if end in text[1:] else len(text)
        assert row[:length] == text[:length]
        assert not any(row[length:])
