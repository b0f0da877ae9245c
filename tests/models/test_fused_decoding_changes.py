"""Decoding in one call when the model changes between tokens: hooks, other code, other weights, copies."""

import copy
import io
from collections.abc import Callable
from functools import partial, wraps
from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import DynamicCache

from helpers.fused_decoding import begun, step, written
from helpers.hugging_face import tiny_model
from helpers.layers import randomize
from smht import SmhtForCausalLM
from smht.models.model import SmhtModel
from smht.models.preallocated_cache import PreallocatedCache

pytestmark = pytest.mark.usefixtures("silent_transformers", "cpu_kernels")


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


@pytest.mark.parametrize("kind", ["register_forward_hook", "register_forward_pre_hook"])
@torch.no_grad()
def test_so_is_a_hook_on_the_model_around_the_blocks(kind: str, calls: list[int]) -> None:
    model, seen = tiny_model(), []
    cache = begun(model)
    step(model, cache)
    handle = getattr(model.model, kind)(lambda *_: seen.append(1))
    step(model, cache)
    handle.remove()
    step(model, cache)
    assert seen == [1] and calls == [2, 2, 2]


@torch.no_grad()
def test_so_is_another_forward_of_that_model(monkeypatch: pytest.MonkeyPatch) -> None:
    model, seen = tiny_model(), []
    cache, forward = begun(model), SmhtModel.forward

    def counted(*arguments: Any, **options: Any) -> Any:
        seen.append(1)
        return forward(*arguments, **options)

    step(model, cache)
    model.model.forward = partial(counted, model.model)
    step(model, cache)
    del model.model.forward
    monkeypatch.setattr(SmhtModel, "forward", counted)
    step(model, cache)
    assert seen == [1, 1]


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
