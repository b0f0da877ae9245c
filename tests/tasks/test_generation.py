import math
from collections.abc import Sequence
from itertools import islice
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor
from transformers import PreTrainedTokenizerFast, TemperatureLogitsWarper, TopKLogitsWarper, TopPLogitsWarper

from helpers.errors import refused
from smht.models import SmhtConfig, SmhtForCausalLM
from smht.tasks import generation
from smht.tasks.generation import Sampling, choose, encode_prompt, stream_text
from smht.tokenization import BOS_ID, EOS_ID, PAD_ID, StreamDecoder, build_tokenizer

VOCAB = 259
CONTEXT = 24
GREEDY = Sampling(temperature=0, max_new_tokens=20)


@pytest.fixture(scope="module")
def tokenizer() -> PreTrainedTokenizerFast:
    return build_tokenizer("byte", None)


@pytest.fixture(scope="module")
def model() -> SmhtForCausalLM:
    torch.manual_seed(0)
    config = SmhtConfig(
        vocab_size=VOCAB,
        hidden_size=16,
        num_hidden_layers=1,
        num_attention_heads=2,
        max_position_embeddings=CONTEXT,
        initializer_range=1.0,
    )
    model = SmhtForCausalLM(config).eval()
    with torch.no_grad():
        model.lm_head.weight[EOS_ID] = 0  # never the likeliest: the tests below want it to go on
    return model


class Scripted:
    """A stand-in for a model that gives the logits it was told to, one row a call."""

    device = torch.device("cpu")

    def __init__(self, rows: Sequence[Tensor], context: int = CONTEXT) -> None:
        self.config = SmhtConfig(vocab_size=VOCAB, hidden_size=8, max_position_embeddings=context)
        self._rows = iter(rows)
        self.calls = 0

    def new_cache(self) -> None:
        """It remembers by itself."""

    def token_steps(self, cache: None, count: int) -> None:
        """It has none."""

    def __call__(self, input_ids: Tensor, **arguments: object) -> SimpleNamespace:
        self.calls += 1
        return SimpleNamespace(logits=next(self._rows).clone()[None, None])


def preferring(*tokens: int) -> Tensor:
    """Logits `[V]` that fall along `tokens` and are low for all others."""
    logits = torch.full((VOCAB,), -20.0)
    for place, token in enumerate(tokens):
        logits[token] = 20.0 - place
    return logits


def scripted_text(data: bytes, tokenizer: PreTrainedTokenizerFast, sampling: Sampling = GREEDY) -> list[str]:
    script: Any = Scripted([preferring(byte) for byte in data] + [preferring(EOS_ID)])
    return list(stream_text(script, tokenizer, [BOS_ID], sampling))


@pytest.fixture
def pushed(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The ids of the tokens that were generated: text hides which bytes are no UTF-8."""
    ids: list[int] = []

    class Recording(StreamDecoder):
        def push(self, index: Any) -> str:
            ids.append(int(index))
            return super().push(index)

    monkeypatch.setattr(generation, "StreamDecoder", Recording)
    return ids


# Prompts


def test_a_prompt_begins_with_the_begin_token_and_never_spells_another(tokenizer: PreTrainedTokenizerFast) -> None:
    assert encode_prompt(tokenizer, "é<eos>".encode()) == [BOS_ID, 195, 169, *b"<eos>"]
    assert encode_prompt(tokenizer, b"") == [BOS_ID]
    assert all(type(token) is int for token in encode_prompt(tokenizer, b"ab"))


def test_a_prompt_that_is_not_utf8_is_refused_where_the_tokenizer_needs_it(tokenizer: PreTrainedTokenizerFast) -> None:
    assert encode_prompt(tokenizer, b"\xff") == [BOS_ID, 255]
    with refused("the prompt", "0xff"):
        encode_prompt(build_tokenizer("char", ["a"]), b"a\xff")


# The likeliest token


@pytest.mark.parametrize("prompt", [b"", b"a", b"hello", b"\xf0\x9f"])
def test_greedy_is_what_generate_gives(
    model: SmhtForCausalLM, tokenizer: PreTrainedTokenizerFast, pushed: list[int], prompt: bytes
) -> None:
    ids = encode_prompt(tokenizer, prompt)
    count = CONTEXT - len(ids)
    expected = model.generate(
        torch.tensor([ids]),
        attention_mask=torch.ones(1, len(ids), dtype=torch.long),
        do_sample=False,
        max_new_tokens=count,
        suppress_tokens=[BOS_ID, PAD_ID],
        eos_token_id=EOS_ID,
        pad_token_id=PAD_ID,
    )
    "".join(stream_text(model, tokenizer, ids, Sampling(temperature=0, max_new_tokens=count)))
    assert pushed == expected[0, len(ids) :].tolist()
    assert len(set(pushed)) > 3


def greedy_without_cache(model: SmhtForCausalLM, ids: list[int], count: int) -> list[int]:
    """What the docstring says, one whole forward pass a token."""
    made: list[int] = []
    window = ids if len(ids) <= CONTEXT else ids[-(CONTEXT // 2) :]
    while len(made) < count:
        with torch.no_grad():
            logits = model(input_ids=torch.tensor([window])).logits[0, -1]
        logits[[BOS_ID, PAD_ID]] = -math.inf
        made.append(int(logits.argmax()))
        window = [*window, made[-1]]
        if len(window) > CONTEXT:
            window = window[-(CONTEXT // 2) :]
    return made


@pytest.mark.parametrize("length", [1, CONTEXT - 1, CONTEXT, CONTEXT + 1, 3 * CONTEXT])
def test_beyond_the_context_it_goes_on_from_the_newest_half(
    model: SmhtForCausalLM, tokenizer: PreTrainedTokenizerFast, pushed: list[int], length: int
) -> None:
    prompt = [BOS_ID, *range(1, length)]
    "".join(stream_text(model, tokenizer, prompt, Sampling(temperature=0, max_new_tokens=100)))
    assert pushed == greedy_without_cache(model, prompt, 100)


@pytest.mark.parametrize("context", [1, 2, 3])
def test_the_smallest_contexts_work(tokenizer: PreTrainedTokenizerFast, pushed: list[int], context: int) -> None:
    torch.manual_seed(0)
    config = SmhtConfig(vocab_size=VOCAB, hidden_size=8, num_hidden_layers=1, max_position_embeddings=context)
    small = SmhtForCausalLM(config).eval()
    for prompt in (b"", b"abc"):
        lengths = []
        for seed in range(6):
            pushed.clear()
            sampling = Sampling(1.0, max_new_tokens=15, seed=seed)
            "".join(stream_text(small, tokenizer, encode_prompt(tokenizer, prompt), sampling))
            lengths.append(len(pushed))
        # An end token may come early by chance, but not every time.
        assert max(lengths) == 15


@pytest.mark.parametrize("count", [1, 2, CONTEXT, CONTEXT + 1, 3 * CONTEXT])
def test_as_many_tokens_as_asked_for_and_no_forward_pass_more(
    tokenizer: PreTrainedTokenizerFast, pushed: list[int], count: int
) -> None:
    script: Any = Scripted([preferring(97)] * count)
    text = "".join(stream_text(script, tokenizer, [BOS_ID], Sampling(temperature=0, max_new_tokens=count)))
    assert text == "a" * count
    assert script.calls == count


# What comes out


def test_an_end_token_stops_and_is_not_shown(tokenizer: PreTrainedTokenizerFast) -> None:
    assert "".join(scripted_text(b"abc", tokenizer)) == "abc"


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_begin_and_padding_tokens_are_never_chosen(
    tokenizer: PreTrainedTokenizerFast, pushed: list[int], temperature: float
) -> None:
    script: Any = Scripted([preferring(BOS_ID, PAD_ID, 97, 98)] * 50)
    "".join(stream_text(script, tokenizer, [BOS_ID], Sampling(temperature, max_new_tokens=50)))
    assert set(pushed) <= {97, 98}
    assert len(pushed) == 50


def test_they_take_no_place_among_the_likeliest(tokenizer: PreTrainedTokenizerFast) -> None:
    for restriction in ({"top_k": 1}, {"top_p": 0.1}):
        script: Any = Scripted([preferring(BOS_ID, PAD_ID, 97, 98)] * 10)
        assert "".join(stream_text(script, tokenizer, [BOS_ID], Sampling(max_new_tokens=10, **restriction))) == "a" * 10


@given(st.text(min_size=1, max_size=4))
def test_characters_come_out_whole_and_at_once(tokenizer: PreTrainedTokenizerFast, text: str) -> None:
    pieces = scripted_text(text.encode(), tokenizer, Sampling(temperature=0, max_new_tokens=100))
    assert [piece for piece in pieces if piece] == list(text)


def test_a_character_that_stays_incomplete_is_marked(tokenizer: PreTrainedTokenizerFast) -> None:
    data = "a🙂".encode()
    assert "".join(scripted_text(data[:3], tokenizer)) == "a\ufffd"
    cut = scripted_text(data, tokenizer, Sampling(temperature=0, max_new_tokens=3))
    assert "".join(cut) == "a\ufffd"


def test_text_comes_piece_by_piece(tokenizer: PreTrainedTokenizerFast) -> None:
    script: Any = Scripted([preferring(97)] * 50)
    pieces = stream_text(script, tokenizer, [BOS_ID], Sampling(temperature=0, max_new_tokens=50))
    assert list(islice(pieces, 3)) == ["a"] * 3
    assert script.calls == 3


def test_no_gradients_are_kept_and_the_callers_mode_is_left_alone(
    model: SmhtForCausalLM, tokenizer: PreTrainedTokenizerFast
) -> None:
    pieces = stream_text(model, tokenizer, [BOS_ID], Sampling(max_new_tokens=3))
    next(pieces)
    assert torch.is_grad_enabled()
    assert not torch.is_inference_mode_enabled()


# Chance


def sample(model: Any, tokenizer: PreTrainedTokenizerFast, seed: int) -> str:
    return "".join(stream_text(model, tokenizer, [BOS_ID], Sampling(temperature=1.5, max_new_tokens=40, seed=seed)))


def test_a_seed_gives_the_same_text_and_another_seed_another(
    model: SmhtForCausalLM, tokenizer: PreTrainedTokenizerFast
) -> None:
    first = sample(model, tokenizer, 7)
    torch.manual_seed(123)  # not the generator in use
    assert sample(model, tokenizer, 7) == first
    assert len({sample(model, tokenizer, seed) for seed in range(5)}) == 5


def warped(logits: Tensor, sampling: Sampling) -> Tensor:
    """Probabilities by transformers' own chain, in the order of `generate`."""
    scores, no_ids = logits[None].double(), torch.empty(1, 0, dtype=torch.long)
    warpers: list[Any] = [TemperatureLogitsWarper(sampling.temperature)]
    warpers += [TopKLogitsWarper(sampling.top_k)] if sampling.top_k else []
    warpers += [TopPLogitsWarper(sampling.top_p)] if sampling.top_p else []
    for warper in warpers:
        scores = warper(no_ids, scores)
    return scores[0].softmax(-1)


@pytest.mark.parametrize(
    "sampling",
    [
        Sampling(temperature=1.0),
        Sampling(temperature=0.5),
        Sampling(temperature=3.0),
        Sampling(temperature=1.0, top_k=3),
        Sampling(temperature=1.0, top_k=1000),
        Sampling(temperature=1.0, top_p=0.7),
        Sampling(temperature=1.0, top_p=1.0),
        Sampling(temperature=1.0, top_p=1e-6),
        # Where the order matters: heat first, then the counts.
        Sampling(temperature=2.5, top_p=0.7),
        Sampling(temperature=2.0, top_k=4, top_p=0.6),
    ],
    ids=lambda sampling: f"{sampling.temperature}-{sampling.top_k}-{sampling.top_p}",
)
def test_tokens_are_as_frequent_as_transformers_has_them(sampling: Sampling) -> None:
    logits = torch.tensor([3.0, 2.5, 2.0, 1.5, 1.0, 0.0, -1.0, -torch.inf])
    expected = warped(logits, sampling)
    generator = torch.Generator().manual_seed(0)
    draws = 2000
    counts = torch.bincount(
        torch.tensor([choose(logits, sampling, generator) for _ in range(draws)]), minlength=len(logits)
    )
    assert not counts[expected == 0].any()
    # Five standard deviations of each count.
    allowed = 5 * (draws * expected * (1 - expected)).sqrt() + 1e-9
    assert ((counts - draws * expected).abs() <= allowed).all()


def test_temperature_zero_takes_the_likeliest_whatever_else_is_asked() -> None:
    logits = torch.tensor([0.0, 5.0, 4.9])
    for sampling in (Sampling(0), Sampling(0, top_k=2), Sampling(0, top_p=0.5)):
        assert choose(logits, sampling, torch.Generator()) == 1


@pytest.mark.parametrize("temperature", [1e-3, 1e-39, 5e-324, 1e300])
def test_extreme_temperatures_are_no_special_case(temperature: float) -> None:
    logits = torch.tensor([0.0, 5.0, 4.9, -torch.inf])
    drawn = {choose(logits, Sampling(temperature), torch.Generator().manual_seed(seed)) for seed in range(60)}
    assert drawn == ({0, 1, 2} if temperature > 1 else {1})


# Refusals


@pytest.mark.parametrize("sampling", [Sampling(0), Sampling(), Sampling(top_k=2), Sampling(top_p=0.5)])
@pytest.mark.parametrize("wrong", [math.nan, math.inf, -math.inf])
def test_scores_that_are_no_numbers_are_refused(sampling: Sampling, wrong: float) -> None:
    logits = torch.full((4,), wrong) if wrong < 0 else torch.tensor([0.0, wrong, 1.0, -math.inf])
    with refused("scores that are no numbers"):
        choose(logits, sampling, torch.Generator())


@pytest.mark.parametrize(
    ("values", "needle"),
    [
        ({"temperature": -0.1}, "temperature = -0.1"),
        ({"temperature": math.nan}, "temperature = nan"),
        ({"temperature": math.inf}, "temperature = inf"),
        ({"top_k": 0}, "top_k = 0"),
        ({"top_k": -3}, "top_k = -3"),
        ({"top_p": 0.0}, "top_p = 0.0"),
        ({"top_p": 1.01}, "top_p = 1.01"),
        ({"top_p": math.nan}, "top_p = nan"),
        ({"max_new_tokens": 0}, "max_new_tokens = 0"),
        ({"seed": -1}, "seed = -1"),
        ({"seed": 2**64}, "seed = 18446744073709551616"),
    ],
)
def test_bad_values_are_refused(values: dict[str, Any], needle: str) -> None:
    with refused(needle):
        Sampling(**values)


def test_the_largest_seed_works(model: SmhtForCausalLM, tokenizer: PreTrainedTokenizerFast) -> None:
    assert sample(model, tokenizer, 2**64 - 1) != sample(model, tokenizer, 0)


@pytest.mark.parametrize("least", [0, 1, 5, 40])
def test_a_text_may_not_end_before_its_fewest_tokens(tokenizer: PreTrainedTokenizerFast, least: int) -> None:
    script: Any = Scripted([preferring(EOS_ID, ord("a"))] * 60)
    sampling = Sampling(temperature=0, max_new_tokens=50, min_new_tokens=least)
    assert "".join(stream_text(script, tokenizer, [BOS_ID], sampling)) == "a" * least


def test_fewest_and_most_tokens_fit() -> None:
    with refused("min_new_tokens = 11 must be from 0 to max_new_tokens = 10"):
        Sampling(max_new_tokens=10, min_new_tokens=11)
