"""Decoding in one call: the same tokens as block by block, taken where it may be and nowhere else."""

import copy
import io
from collections.abc import Callable, Iterator
from functools import wraps
from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import DynamicCache, StaticCache
from transformers.cache_utils import Cache

from helpers.hugging_face import CONTEXT, left_padded, random_tokens, tiny, tiny_model, tiny_seq2seq
from helpers.layers import randomize
from smht import SmhtForCausalLM, SmhtModel, ops
from smht.layers.block import NORM_PLACEMENTS
from smht.models.cache_argument import CACHE_ARGUMENT
from smht.models.preallocated_cache import PreallocatedCache
from smht.ops import BACKENDS, backend

pytestmark = pytest.mark.usefixtures("silent_transformers")

NEW_TOKENS = 12
GREEDY: dict[str, Any] = {"do_sample": False, "max_new_tokens": NEW_TOKENS}
STATIC: dict[str, Any] = {"cache_implementation": "static"}
MODES: dict[str, dict[str, Any]] = {
    "greedy": {},
    "beams": {"num_beams": 3, "num_return_sequences": 2},
    "sampling": {"do_sample": True, "num_return_sequences": 2},
    "static cache": STATIC,
}
ENCODINGS = ["learned", "sinusoidal", "rotary", "none"]


@pytest.fixture(autouse=True)
def own_backend(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    if reason := BACKENDS["cpu"].why_unavailable():
        pytest.skip(reason)
    monkeypatch.setattr(backend, "_chosen", "auto")
    yield


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many sequences each call of the kernel had."""
    made: list[int] = []
    functions = BACKENDS["cpu"].functions
    kernel = functions["split_decode"]

    def recording(x: Tensor, *arguments: Any) -> Tensor:
        made.append(len(x))
        return kernel(x, *arguments)

    monkeypatch.setitem(functions, "split_decode", recording)
    return made


def composed(function: Callable[[], Any]) -> Any:
    """What it gives with the reference, block by block."""
    before, backend._chosen = backend._chosen, "reference"
    try:
        return function()
    finally:
        backend._chosen = before


def written(model: SmhtForCausalLM, prompt: Tensor | None = None, **options: Any) -> Tensor:
    torch.manual_seed(0)
    return model.generate(random_tokens(2, 5) if prompt is None else prompt, **{**GREEDY, **options})


# The same tokens


@pytest.mark.parametrize("encoding", ENCODINGS)
@pytest.mark.parametrize("architecture", ["split", "shuffle", "head-norm"])
@pytest.mark.parametrize("placement", NORM_PLACEMENTS)
@pytest.mark.parametrize("mode", MODES)
def test_text_is_that_of_the_composed_path(
    encoding: str, architecture: str, placement: str, mode: str, calls: list[int]
) -> None:
    model = tiny_model(architecture, position_embedding=encoding, norm_placement=placement)
    ids, mask = left_padded(random_tokens(1, 5), 3)
    prompt = torch.cat([ids, random_tokens(2, 8, seed=1)])
    mask = torch.cat([mask, torch.ones(2, 8, dtype=torch.long)])
    options = {"attention_mask": mask, "pad_token_id": 0, **MODES[mode]}
    produced = written(model, prompt, **options)
    assert len(calls) == NEW_TOKENS - 1
    assert torch.equal(produced, composed(lambda: written(model, prompt, **options)))
    assert len(calls) == NEW_TOKENS - 1


@pytest.mark.parametrize("encoding", ENCODINGS)
@pytest.mark.parametrize("architecture", ["split", "shuffle", "head-norm"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@torch.inference_mode()
def test_logits_and_caches_are_those_of_the_composed_path(
    encoding: str, architecture: str, dtype: torch.dtype, calls: list[int]
) -> None:
    model = tiny_model(architecture, position_embedding=encoding).to(dtype)
    ids, mask = left_padded(random_tokens(2, 9), 2)
    mask[1] = 1

    def run(cache: Any) -> tuple[Tensor, list[Any]]:
        parts, end = [], 0
        # One token, several, and one again.
        for part in ids.split([4, 1, 1, 3, 1, 1], 1):
            end += part.shape[1]
            parts.append(model(part, attention_mask=mask[:, :end], **{CACHE_ARGUMENT: cache}).logits)
        assert cache.get_seq_length() == 11
        return torch.cat(parts, 1), cache.layers

    expected, their_layers = run(DynamicCache())
    tolerance = 1e-4 if dtype == torch.float32 else 0.15
    for cache in (PreallocatedCache(3), StaticCache(config=model.config, max_cache_len=20)):
        calls.clear()
        logits, layers = run(cache)
        assert calls == [2] * 4
        # Padding that nothing may see has logits of its own in each path.
        torch.testing.assert_close(logits[mask == 1], expected[mask == 1], rtol=tolerance, atol=tolerance)
        for ours, theirs in zip(layers, their_layers, strict=True):
            seen = mask[:, None, :, None].bool()
            for our, their in ((ours.keys, theirs.keys), (ours.values, theirs.values)):
                torch.testing.assert_close(our[:, :, :11] * seen, their * seen, rtol=tolerance, atol=tolerance)


def test_the_context_may_be_filled_and_no_further(calls: list[int]) -> None:
    model = tiny_model()
    prompt = random_tokens()
    produced = written(model, prompt, max_new_tokens=None, max_length=CONTEXT)
    assert len(calls) == CONTEXT - prompt.shape[1] - 1
    assert torch.equal(produced, composed(lambda: written(model, prompt, max_new_tokens=None, max_length=CONTEXT)))


def test_a_returned_cache_serves_the_next_call(calls: list[int]) -> None:
    model = tiny_model()
    first = written(model, return_dict_in_generate=True)
    assert isinstance(first[CACHE_ARGUMENT], DynamicCache)
    second = written(model, first.sequences, return_dict_in_generate=True, **{CACHE_ARGUMENT: first[CACHE_ARGUMENT]})
    assert torch.equal(second.sequences, composed(lambda: written(model, max_new_tokens=2 * NEW_TOKENS)))
    assert len(calls) == 2 * NEW_TOKENS - 1


@torch.no_grad()
def test_embeddings_serve_as_well_as_tokens(calls: list[int]) -> None:
    model = tiny_model()
    embedded = model.get_input_embeddings()(random_tokens(2, 5))
    produced = model.generate(inputs_embeds=embedded, **GREEDY)
    assert torch.equal(produced, composed(lambda: written(model))[:, 5:])
    assert len(calls) == NEW_TOKENS - 1


def test_the_model_without_a_head_decodes_too(calls: list[int]) -> None:
    model = tiny(SmhtModel)
    cache = PreallocatedCache(3)
    with torch.no_grad():
        parts = [model(part, **{CACHE_ARGUMENT: cache}).last_hidden_state for part in random_tokens(2, 7).split(6, 1)]
        whole = model(random_tokens(2, 7)).last_hidden_state
    torch.testing.assert_close(torch.cat(parts, 1), whole, rtol=1e-4, atol=1e-4)
    assert calls == [2]


# Where it is taken


def step(model: Any, cache: Cache, tokens: int = 1, **options: Any) -> Any:
    return model(random_tokens(2, tokens, seed=3), **{CACHE_ARGUMENT: cache}, **options)


def begun(model: SmhtForCausalLM, cache: Cache | None = None) -> Cache:
    """A cache that holds six tokens."""
    cache = PreallocatedCache(len(model.model.layers)) if cache is None else cache
    with torch.no_grad():
        step(model, cache, tokens=6)
    return cache


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


# Changes between tokens


def hook(model: SmhtForCausalLM, add: Callable[[Callable[..., None]], Any], calls: list[int]) -> None:
    """Check that a hook is called, and that the kernel is back when it is gone."""
    cache, seen = begun(model), []
    step(model, cache)
    handle = add(lambda *_: seen.append(1))
    step(model, cache)
    assert seen and calls == [2]
    handle.remove()
    step(model, cache)
    assert calls == [2, 2] and cache.get_seq_length() == 9


@pytest.mark.parametrize(
    "name",
    [
        "layers.1",
        "layers.0.self_attn",
        "layers.2.mlp.down_proj",
        "layers.1.input_layernorm",
        "norm",
        "layers.1.dropout",
    ],
)
@pytest.mark.parametrize("kind", ["register_forward_hook", "register_forward_pre_hook"])
@torch.no_grad()
def test_a_hook_added_between_tokens_is_called(name: str, kind: str, calls: list[int]) -> None:
    model = tiny_model()
    hook(model, getattr(model.model.get_submodule(name), kind), calls)


@torch.no_grad()
def test_so_is_a_hook_on_all_modules(calls: list[int]) -> None:
    hook(tiny_model(), torch.nn.modules.module.register_module_forward_hook, calls)


def replace_forward(model: SmhtForCausalLM) -> None:
    projection = model.model.layers[1].mlp.up_proj
    forward = projection.forward
    projection.forward = lambda x: 2 * forward(x)


def parametrize(model: SmhtForCausalLM) -> None:
    class Doubled(torch.nn.Module):
        def forward(self, weight: Tensor) -> Tensor:
            return 2 * weight

    torch.nn.utils.parametrize.register_parametrization(model.model.layers[1].self_attn.o_proj, "weight", Doubled())


def replace_block(model: SmhtForCausalLM) -> None:
    class Doubling(torch.nn.Module):
        def __init__(self, block: torch.nn.Module) -> None:
            super().__init__()
            self.block = block

        def forward(self, *arguments: Any, **options: Any) -> Tensor:
            return 2 * self.block(*arguments, **options)

    model.model.layers[1] = Doubling(model.model.layers[1])


@pytest.mark.parametrize("change", [replace_forward, parametrize, replace_block])
@torch.no_grad()
def test_other_code_put_in_between_tokens_is_run(change: Callable[[SmhtForCausalLM], None], calls: list[int]) -> None:
    model = tiny_model()
    results = []
    for cache in (PreallocatedCache(3), DynamicCache()):
        changed = copy.deepcopy(model)
        step(changed, begun(changed, cache))
        change(changed)
        results.append(step(changed, cache).logits)
    torch.testing.assert_close(*results, rtol=1e-4, atol=1e-4)
    assert calls == [2]


def new_parameter(model: SmhtForCausalLM) -> None:
    model.model.layers[1].mlp.up_proj.weight = torch.nn.Parameter(-model.model.layers[1].mlp.up_proj.weight)


def other_block(model: SmhtForCausalLM) -> None:
    model.model.layers[1] = copy.deepcopy(model.model.layers[0])
    model.model.layers[1].self_attn.layer_idx = 1


def other_blocks(model: SmhtForCausalLM) -> None:
    model.model.layers = copy.deepcopy(model.model.layers)
    model.model.layers[2].mlp.down_proj.weight.mul_(3)


@pytest.mark.parametrize(
    "change", [randomize, new_parameter, other_block, other_blocks, lambda model: model.bfloat16()]
)
@torch.no_grad()
def test_other_weights_put_in_between_tokens_are_used(
    change: Callable[[SmhtForCausalLM], None], calls: list[int]
) -> None:
    model = tiny_model()
    step(model, begun(model))
    change(model)
    produced = step(model, begun(model)).logits
    assert calls == [2, 2]
    expected = step(model, begun(model, DynamicCache())).logits
    tolerance = 1e-4 if produced.dtype == torch.float32 else 0.15
    torch.testing.assert_close(produced, expected, rtol=tolerance, atol=tolerance)


@torch.no_grad()
def test_copies_of_a_model_decode_with_weights_of_their_own(calls: list[int]) -> None:
    model = tiny_model()
    step(model, begun(model))
    file = io.BytesIO()
    torch.save(model, file)
    file.seek(0)
    for copied in (copy.deepcopy(model), torch.load(file, weights_only=False)):
        calls.clear()
        randomize(copied)
        produced = step(copied, begun(copied)).logits
        assert calls == [2]
        torch.testing.assert_close(produced, step(copied, begun(copied, DynamicCache())).logits, rtol=1e-4, atol=1e-4)


def test_a_model_whose_own_forward_was_replaced_as_by_a_compiler_has_the_cache_that_compilers_know(
    calls: list[int],
) -> None:
    model = tiny_model()
    expected, forward = written(model), model.forward
    model.forward = wraps(forward)(lambda *arguments, **options: forward(*arguments, **options))
    calls.clear()
    assert type(model.new_cache()) is DynamicCache
    assert torch.equal(written(model), expected)
    assert not calls
