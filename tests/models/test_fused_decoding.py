"""Decoding in one call: the same tokens as block by block."""

from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import DynamicCache, StaticCache

from helpers.fused_decoding import GREEDY, NEW_TOKENS, STATIC, composed, written
from helpers.hugging_face import CONTEXT, left_padded, random_tokens, tiny, tiny_model
from smht import SmhtModel
from smht.layers.block import NORM_PLACEMENTS
from smht.models.cache_argument import CACHE_ARGUMENT
from smht.models.preallocated_cache import PreallocatedCache

pytestmark = pytest.mark.usefixtures("silent_transformers", "cpu_kernels")

MODES: dict[str, dict[str, Any]] = {
    "greedy": {},
    "beams": {"num_beams": 3, "num_return_sequences": 2},
    "sampling": {"do_sample": True, "num_return_sequences": 2},
    "static cache": STATIC,
}
ENCODINGS = ["learned", "sinusoidal", "rotary", "none"]


@pytest.mark.parametrize("encoding", ENCODINGS)
@pytest.mark.parametrize("architecture", ["split", "shuffle", "head-norm"])
@pytest.mark.parametrize("placement", NORM_PLACEMENTS)
@pytest.mark.parametrize("mode", MODES)
def test_text_is_that_of_the_composed_path(
    encoding: str, architecture: str, placement: str, mode: str, calls: list[int]
) -> None:
    model = tiny_model(architecture, position_embedding=encoding, norm_placement=placement, num_hidden_layers=2)
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
