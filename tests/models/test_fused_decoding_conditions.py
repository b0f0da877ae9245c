"""Decoding in one call: taken where it may be and nowhere else."""

from typing import Any

import pytest
import torch
from transformers import DynamicCache, StaticCache

from helpers.errors import refused
from helpers.fused_decoding import GREEDY, NEW_TOKENS, STATIC, begun, step, written
from helpers.hugging_face import random_tokens, tiny_model, tiny_seq2seq
from smht import ops
from smht.models.cache_argument import CACHE_ARGUMENT
from smht.models.preallocated_cache import PreallocatedCache

pytestmark = pytest.mark.usefixtures("silent_transformers", "cpu_kernels")


@torch.no_grad()
def test_it_is_taken(calls: list[int]) -> None:
    model = tiny_model()
    step(model, begun(model))
    assert calls == [2]
    step(model, begun(model), output_attentions=False, output_hidden_states=False)
    assert calls == [2, 2]


REFUSED_MODELS: dict[str, dict[str, Any]] = {
    "dense": {"split": ()},
    "a dense feed-forward": {"split": ("qkv", "output")},
    "relative positions": {"position_embedding": "relative"},
    "a sparse pattern": {"attention_pattern": "block_sparse", "sparse_block_size": 3},
    "attention written out": {"attn_implementation": "eager"},
}


@pytest.mark.parametrize("name", REFUSED_MODELS)
def test_other_models_take_the_composed_path(name: str, calls: list[int]) -> None:
    model = tiny_model("split", **REFUSED_MODELS[name])
    cache = begun(model)
    with torch.no_grad():
        step(model, cache)
    written(model)
    written(model, **STATIC)
    assert not calls and type(model.new_cache()) is DynamicCache


def test_encoder_decoders_take_the_composed_path(calls: list[int]) -> None:
    for options in ({}, STATIC):
        tiny_seq2seq("split").generate(random_tokens(2, 5), attention_mask=torch.ones(2, 5), **GREEDY, **options)
    assert not calls


@pytest.mark.parametrize("dtype", [torch.float64, torch.float16])
@torch.no_grad()
def test_other_number_types_take_the_composed_path(dtype: torch.dtype, calls: list[int]) -> None:
    model = tiny_model().to(dtype)
    step(model, begun(model))
    assert not calls and type(model.new_cache()) is DynamicCache


@pytest.mark.parametrize(
    "options",
    [{"output_attentions": True}, {"output_hidden_states": True}, {"is_causal": True}],
    ids=lambda options: next(iter(options)),
)
@torch.no_grad()
def test_what_lies_in_between_takes_the_composed_path(
    options: dict[str, Any], calls: list[int], transformers_messages: list[str]
) -> None:
    model = tiny_model()
    cache = begun(model)
    outputs = step(model, cache, **options)
    assert not calls
    if "output_hidden_states" in options:
        assert len(outputs.hidden_states) == 4
    transformers_messages.clear()  # `sdpa` has no weights, and it says so
    # What transformers left behind does nothing.
    step(model, cache)
    assert calls == [2]


@torch.no_grad()
def test_hidden_states_may_be_asked_for_by_the_configuration(calls: list[int]) -> None:
    model = tiny_model()
    cache = begun(model)
    model.config.output_hidden_states = True
    assert len(step(model, cache).hidden_states) == 4
    assert not calls


def test_several_tokens_gradients_and_training_take_the_composed_path(calls: list[int]) -> None:
    model = tiny_model(hidden_dropout=0.5)
    cache = begun(model)
    with torch.no_grad():
        step(model, cache, tokens=2)
        model.train()
        step(model, cache)
        model.eval()
        model.model.layers[1].dropout.train()
        step(model, cache)
    model.eval()
    step(model, PreallocatedCache(3))
    step(model, cache)
    assert not calls
    with torch.no_grad():
        step(model, begun(model))
    assert calls == [2]


@torch.no_grad()
def test_other_caches_take_the_composed_path(calls: list[int]) -> None:
    model = tiny_model()
    cache = begun(model, DynamicCache())
    step(model, cache)
    assert cache.get_seq_length() == 7
    # None before these tokens, and no room for another.
    step(model, PreallocatedCache(3))
    full = begun(model, StaticCache(config=model.config, max_cache_len=6))
    with pytest.raises(IndexError):
        step(model, full)
    interrupted = begun(model)
    interrupted.layers[0].crop(-1)
    step(model, interrupted)
    assert not calls


def test_a_cache_given_to_generate_is_used_as_it_is(calls: list[int]) -> None:
    model = tiny_model()
    given = DynamicCache()
    produced = written(model, **{CACHE_ARGUMENT: given})
    assert given.get_seq_length() == 5 + NEW_TOKENS - 1
    assert torch.equal(produced, written(model, cache_implementation="dynamic"))
    assert torch.equal(produced, written(model, use_cache=False))
    assert not calls


@torch.no_grad()
def test_a_cache_of_another_batch_is_refused() -> None:
    model = tiny_model()
    with refused("keys must be", "[3, 4, S, 4]"):
        model(random_tokens(3, 1), **{CACHE_ARGUMENT: begun(model)})


@torch.no_grad()
def test_masks_of_other_kinds_take_the_composed_path(calls: list[int]) -> None:
    model = tiny_model()
    cache = begun(model)
    step(model, cache, attention_mask=torch.zeros(2, 1, 1, 7))
    step(model, cache, attention_mask=torch.ones(2, 4, 1, 8, dtype=torch.bool))
    assert not calls
    step(model, cache, attention_mask=torch.ones(2, 1, 1, 9, dtype=torch.bool))
    step(model, cache, attention_mask=torch.ones(2, 10))
    assert calls == [2, 2]


@torch.no_grad()
def test_the_reference_and_autocast_take_the_composed_path(calls: list[int]) -> None:
    model = tiny_model()
    cache = begun(model)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        step(model, begun(model))
    ops.set_backend("reference")
    step(model, cache)
    assert not calls and type(model.new_cache()) is DynamicCache
