"""`generate` in all its modes against loops and enumerations written out by hand."""

import itertools
from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import DynamicCache

from helpers.hugging_face import ARCHITECTURES, CONTEXT, VOCAB_SIZE, left_padded, random_tokens, tiny_model
from smht import SmhtForCausalLM
from smht.errors import UsageError
from smht.models.cache_argument import CACHE_ARGUMENT

silent = pytest.mark.usefixtures("silent_transformers")
every_architecture = pytest.mark.parametrize("architecture", ARCHITECTURES)


@torch.no_grad()
def greedy(model: SmhtForCausalLM, input_ids: Tensor, new_tokens: int) -> Tensor:
    """The most likely next token, again and again, each from a forward pass over everything."""
    for _ in range(new_tokens):
        best = model(input_ids, use_cache=False).logits[:, -1:].argmax(-1)
        input_ids = torch.cat([input_ids, best], 1)
    return input_ids


@silent
@every_architecture
@pytest.mark.parametrize(
    "options",
    [{}, {"use_cache": False}, {"cache_implementation": "static"}, {"prompt_lookup_num_tokens": 3}],
    ids=["dynamic cache", "no cache", "static cache", "prompt lookup"],
)
def test_greedy_text_is_the_same_with_any_cache(architecture: str, options: dict[str, Any]) -> None:
    model = tiny_model(architecture)
    # Prompt lookup takes one prompt at a time, and needs repetition to find anything.
    prompt = random_tokens(2, 3).repeat(1, 2)[: 1 if "prompt_lookup_num_tokens" in options else 2]
    produced = model.generate(prompt, do_sample=False, max_new_tokens=20, **options)
    assert torch.equal(produced, greedy(model, prompt, 20))


@every_architecture
def test_draft_model_changes_the_speed_only(architecture: str) -> None:
    model = tiny_model(architecture)
    draft = tiny_model(architecture, num_hidden_layers=1)
    draft.load_state_dict(model.state_dict(), strict=False)
    prompt = random_tokens(1)
    produced = model.generate(prompt, assistant_model=draft, do_sample=False, max_new_tokens=20)
    assert torch.equal(produced, greedy(model, prompt, 20))


@silent
@every_architecture
@torch.no_grad()
def test_cached_keys_and_values_give_the_logits_of_the_whole(architecture: str) -> None:
    model = tiny_model(architecture).double()
    input_ids = random_tokens(2, 9)
    whole = model(input_ids).logits
    cache = DynamicCache(config=model.config)
    parts = [model(part, **{CACHE_ARGUMENT: cache}).logits for part in input_ids.split([4, 1, 3, 1], 1)]
    torch.testing.assert_close(torch.cat(parts, 1), whole, rtol=0, atol=1e-12)
    assert cache.get_seq_length() == 9


@silent
@every_architecture
@pytest.mark.parametrize("options", [{}, {"cache_implementation": "static"}, {"use_cache": False}])
def test_padding_on_the_left_changes_neither_logits_nor_text(architecture: str, options: dict[str, Any]) -> None:
    model = tiny_model(architecture).double()
    rows = [random_tokens(1, length, seed=length) for length in (2, 5, 7)]
    padded = [left_padded(row, 7 - row.shape[1]) for row in rows]
    input_ids, mask = (torch.cat(parts) for parts in zip(*padded, strict=True))
    with torch.no_grad():
        logits = model(input_ids, attention_mask=mask).logits
        for number, row in enumerate(rows):
            alone = model(row).logits[0]
            torch.testing.assert_close(logits[number, -row.shape[1] :], alone, rtol=0, atol=1e-12)
    produced = model.generate(
        input_ids, attention_mask=mask, do_sample=False, max_new_tokens=12, pad_token_id=0, **options
    )
    for number, row in enumerate(rows):
        assert torch.equal(produced[number, 7 - row.shape[1] :], greedy(model, row, 12)[0])


@silent
@torch.no_grad()
def test_padded_step_with_a_cache_counts_real_tokens_only() -> None:
    model = tiny_model().double()
    input_ids = random_tokens(1, 5)
    padded, mask = left_padded(input_ids, 3)
    outputs = model(padded[:, :-1], attention_mask=mask[:, :-1])
    last = model(padded[:, -1:], attention_mask=mask, **{CACHE_ARGUMENT: outputs[CACHE_ARGUMENT]})
    torch.testing.assert_close(last.logits, model(input_ids).logits[:, -1:], rtol=0, atol=1e-12)


@torch.no_grad()
def test_mask_must_cover_the_cached_tokens_too() -> None:
    model = tiny_model()
    cache = model(random_tokens(1, 8))[CACHE_ARGUMENT]
    with pytest.raises(UsageError, match=r"covers 1 tokens, but there are 9: 8 in the cache and 1 new$"):
        model(torch.tensor([[1]]), attention_mask=torch.tensor([[1]]), **{CACHE_ARGUMENT: cache})


@silent
def test_sampling_repeats_with_its_seed() -> None:
    model = tiny_model()
    prompt = random_tokens()
    texts = []
    for seed in (1, 1, 2):
        torch.manual_seed(seed)
        texts.append(model.generate(prompt, do_sample=True, max_new_tokens=20))
    assert torch.equal(texts[0], texts[1])
    assert not torch.equal(texts[0], texts[2])


@silent
def test_sampling_follows_the_models_probabilities() -> None:
    model = tiny_model()
    prompt, samples, temperature = random_tokens(1), 20_000, 1.5
    torch.manual_seed(0)
    produced = model.generate(
        prompt, do_sample=True, max_new_tokens=1, num_return_sequences=samples, temperature=temperature, top_k=0
    )
    counts = torch.bincount(produced[:, -1], minlength=VOCAB_SIZE)
    with torch.no_grad():
        expected = samples * torch.softmax(model(prompt).logits[0, -1].double() / temperature, -1)
    # Pearson's chi-squared is above 100 with a probability of 1e-7 at 36 degrees of freedom.
    assert ((counts - expected) ** 2 / expected.clamp_min(1e-9)).sum() < 100


@silent
@pytest.mark.parametrize("architecture", ["split", "head-norm"])
def test_beam_search_finds_what_enumeration_finds(architecture: str) -> None:
    vocab_size, length, prompt = 4, 4, torch.tensor([[1, 0, 3]])
    model = tiny_model(architecture, vocab_size=vocab_size)
    endings = torch.tensor(list(itertools.product(range(vocab_size), repeat=length)))
    with torch.no_grad():
        logits = model(torch.cat([prompt.expand(len(endings), -1), endings], 1)).logits[:, prompt.shape[1] - 1 : -1]
    likelihoods = torch.log_softmax(logits, -1).gather(-1, endings[..., None]).sum((1, 2))
    best = likelihoods.topk(5)
    # As many beams as there are prefixes of one token less: nothing is pruned.
    found = model.generate(
        prompt,
        num_beams=vocab_size ** (length - 1),
        num_return_sequences=5,
        max_new_tokens=length,
        do_sample=False,
        return_dict_in_generate=True,
        output_scores=True,
    )
    assert torch.equal(found.sequences[:, prompt.shape[1] :], endings[best.indices])
    torch.testing.assert_close(found.sequences_scores * length, best.values)


@silent
def test_beams_share_a_cache_rightly() -> None:
    model = tiny_model()
    options = {"num_beams": 4, "do_sample": False, "max_new_tokens": 15, "num_return_sequences": 2}
    wanted = model.generate(random_tokens(), use_cache=False, **options)
    assert torch.equal(model.generate(random_tokens(), **options), wanted)
    assert torch.equal(model.generate(random_tokens(), cache_implementation="static", **options), wanted)


@silent
def test_generation_ends_at_the_end_token_and_pads_after_it() -> None:
    model, pad = tiny_model(), VOCAB_SIZE - 1
    prompt = random_tokens(3).clamp_max(pad - 1)
    free = greedy(model, prompt, 20)
    end = int(free[0, 10])
    produced = model.generate(prompt, do_sample=False, max_new_tokens=20, eos_token_id=end, pad_token_id=pad)
    assert produced.shape[1] > 7
    for row, text in zip(produced, free, strict=True):
        ends = (text[6:] == end).nonzero()
        length = 6 + int(ends[0]) + 1 if len(ends) else 26
        assert torch.equal(row[:length], text[:length])
        assert (row[length:] == pad).all()


@silent
def test_embeddings_serve_in_place_of_ids() -> None:
    model = tiny_model()
    prompt = random_tokens()
    embeddings = model.get_input_embeddings()(prompt)
    with torch.no_grad():
        assert torch.equal(model(inputs_embeds=embeddings).logits, model(prompt).logits)
    produced = model.generate(inputs_embeds=embeddings, do_sample=False, max_new_tokens=10)
    assert torch.equal(produced, greedy(model, prompt, 10)[:, prompt.shape[1] :])


@silent
def test_generation_goes_on_from_a_cache_that_was_kept() -> None:
    model = tiny_model()
    prompt = random_tokens()
    options = {"do_sample": False, "return_dict_in_generate": True}
    first = model.generate(prompt, max_new_tokens=5, **options)
    second = model.generate(first.sequences, max_new_tokens=5, **{CACHE_ARGUMENT: first[CACHE_ARGUMENT]}, **options)
    assert torch.equal(second.sequences, greedy(model, prompt, 10))


def test_both_names_of_the_cache_are_taken_and_the_old_one_is_deprecated() -> None:
    model = tiny_model().double()
    input_ids = random_tokens(1, 6)
    whole = model(input_ids).logits[:, -1:]
    for name in ("cache", "past_key_values"):
        cache = model(input_ids[:, :-1])[CACHE_ARGUMENT]
        if name != "cache" and CACHE_ARGUMENT == "cache":
            with pytest.warns(FutureWarning, match="`past_key_values` is deprecated"):
                last = model(input_ids[:, -1:], **{name: cache})
        else:
            last = model(input_ids[:, -1:], **{name: cache})
        torch.testing.assert_close(last.logits, whole, rtol=0, atol=1e-12)
        assert last[CACHE_ARGUMENT] is cache


@pytest.mark.parametrize("options", [{}, {"cache_implementation": "static"}, {"use_cache": False}])
def test_generating_past_the_context_says_so_in_one_line(options: dict[str, Any]) -> None:
    with pytest.raises(UsageError, match=rf"^position {CONTEXT} is outside the model's {CONTEXT} positions; [^\n]*$"):
        tiny_model().generate(random_tokens(), do_sample=False, max_new_tokens=CONTEXT, **options)


@silent
def test_context_may_be_filled_to_the_last_position() -> None:
    model = tiny_model()
    prompt = random_tokens()
    # The last token is produced but never read, so it needs no position.
    produced = model.generate(prompt, do_sample=False, max_length=CONTEXT)
    assert torch.equal(produced, greedy(model, prompt, CONTEXT - prompt.shape[1]))
