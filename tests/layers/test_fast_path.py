"""Which conditions keep the fused ops away; that they change no result is for the layers' own tests."""

import types
from collections.abc import Callable
from typing import Any

import accelerate
import pytest
import torch
from torch import nn

from smht import ops
from smht.layers import Block, SplitLinear
from smht.layers.attention_functions import eager_attention
from smht.layers.fast_path import fused_attention_weights, fused_feed_forward_weights, is_fusable
from smht.layers.position import RotaryPositions

X = torch.randn(2, 5, 8, generator=torch.Generator().manual_seed(0))


@pytest.fixture
def fused_calls(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Grows by an op's name at each call of it."""
    calls: list[str] = []
    for name in ("split_attention", "split_feed_forward"):
        op = getattr(ops, name)

        def recorded(*given: Any, op: Callable[..., Any] = op, name: str = name, **options: Any) -> Any:
            calls.append(name)
            return op(*given, **options)

        monkeypatch.setattr(ops, name, recorded)
    return calls


def make(**options: Any) -> Block:
    torch.manual_seed(0)
    return Block(8, 2, 16, **options)


def test_a_split_block_runs_both_fused_ops(fused_calls: list[str]) -> None:
    make()(X)
    assert fused_calls == ["split_attention", "split_feed_forward"]


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({"split": ()}, []),
        ({"split": ("qkv", "output")}, ["split_attention"]),
        ({"split": ("qkv", "feed_forward")}, ["split_feed_forward"]),
        ({"split": ("output", "feed_forward")}, ["split_feed_forward"]),
        ({"bias": True}, ["split_feed_forward"]),
        ({"attention_dropout": 0.1}, ["split_attention", "split_feed_forward"]),
    ],
)
def test_what_a_block_is_made_of_decides(fused_calls: list[str], options: dict, expected: list[str]) -> None:
    make(**options)(X)
    assert fused_calls == expected


@pytest.mark.parametrize("mask", [None, torch.eye(5, dtype=torch.bool)], ids=["causal", "mask"])
def test_a_rotation_is_for_the_fused_op(fused_calls: list[str], mask: torch.Tensor | None) -> None:
    make()(X, mask=mask, rotation=RotaryPositions(5, 4).rotation(torch.arange(5)[None]))
    assert fused_calls == ["split_attention", "split_feed_forward"]


def test_attention_weights_and_caches_need_the_composed_path(fused_calls: list[str]) -> None:
    class Cache:
        def update(self, key_states, value_states, layer_idx):
            return key_states, value_states

    class MemoryCache:
        def load(self, layer_idx):
            return None

        def save(self, key_states, value_states, layer_idx):
            pass

    attention = make().self_attn
    attention(X, attention_function=eager_attention)
    attention(X, cache=Cache())
    attention(X, memory_cache=MemoryCache())
    attention(X, X)
    attention(X, X, X)
    assert fused_calls == []


HOOKS: dict[str, Callable[[nn.Module], Any]] = {
    "forward": lambda module: module.register_forward_hook(lambda *_: None),
    "forward_pre": lambda module: module.register_forward_pre_hook(lambda *_: None),
    "full_backward": lambda module: module.register_full_backward_hook(lambda *_: None),
    "full_backward_pre": lambda module: module.register_full_backward_pre_hook(lambda *_: None),
}


@pytest.mark.parametrize("kind", HOOKS)
@pytest.mark.parametrize("name", ["q_proj", "k_proj", "v_proj", "o_proj"])
def test_hooks_on_attention_projections(fused_calls: list[str], kind: str, name: str) -> None:
    block = make()
    handle = HOOKS[kind](getattr(block.self_attn, name))
    block(X)
    assert fused_calls == ["split_feed_forward"]
    handle.remove()
    block(X)
    assert fused_calls == ["split_feed_forward", "split_attention", "split_feed_forward"]


@pytest.mark.parametrize("kind", HOOKS)
@pytest.mark.parametrize("name", ["up_proj", "down_proj"])
def test_hooks_on_feed_forward_projections(fused_calls: list[str], kind: str, name: str) -> None:
    block = make()
    handle = HOOKS[kind](getattr(block.mlp, name))
    block(X)
    assert fused_calls == ["split_attention"]
    handle.remove()
    block(X)
    assert fused_calls == ["split_attention", "split_attention", "split_feed_forward"]


def test_a_hook_sees_the_projections_own_input_and_output() -> None:
    block = make()
    seen = []
    block.self_attn.q_proj.register_forward_hook(lambda module, given, output: seen.append((given[0], output)))
    block(X)
    (given, output) = seen[0]
    torch.testing.assert_close(given, block.input_layernorm(X))
    torch.testing.assert_close(output, given @ block.self_attn.q_proj.to_dense().weight.T)


def test_a_projection_with_a_forward_of_its_own_is_called(fused_calls: list[str]) -> None:
    class Doubled(SplitLinear):
        def forward(self, x):
            return 2 * super().forward(x)

    block = make()
    plain = block(X)
    doubled = Doubled(2, 16, 8)
    doubled.load_state_dict(block.mlp.down_proj.state_dict())
    block.mlp.down_proj = doubled
    fused_calls.clear()
    changed = block(X)
    assert fused_calls == ["split_attention"]
    attended = X + block.self_attn(block.input_layernorm(X))[0]
    torch.testing.assert_close(changed - attended, 2 * (plain - attended))


def test_a_replaced_forward_is_called(fused_calls: list[str]) -> None:
    block = make()
    block.self_attn.v_proj.forward = types.MethodType(lambda self, x: torch.zeros_like(x), block.self_attn.v_proj)
    assert (block.self_attn(X)[0] == 0).all()
    assert fused_calls == []


def test_weights_that_accelerate_offloads_are_fetched() -> None:
    block = make()
    expected = block(X)
    accelerate.cpu_offload(block, execution_device=torch.device("cpu"))
    assert block.self_attn.q_proj.weight.is_meta
    torch.testing.assert_close(block(X), expected)


def test_a_parametrized_weight_is_used_as_parametrized(fused_calls: list[str]) -> None:
    class Halved(nn.Module):
        def forward(self, weight):
            return weight / 2

    block = make()
    expected = block.self_attn(X)[0] / 2
    nn.utils.parametrize.register_parametrization(block.self_attn.o_proj, "weight", Halved())
    torch.testing.assert_close(block.self_attn(X)[0], expected)


def test_weights_that_the_ops_take() -> None:
    split, biased, dense = SplitLinear(2, 8, 8), SplitLinear(2, 8, 8, bias=True), nn.Linear(8, 8)
    assert is_fusable(split, biased) and not is_fusable(split, dense)
    weights = fused_attention_weights(split, split, split, split)
    assert weights is not None and all(weight is split.weight for weight in weights)
    assert fused_attention_weights(split, split, split, biased) is None
    assert fused_attention_weights(split, split, split, dense) is None
    assert fused_feed_forward_weights(split, biased) == (split.weight, biased.weight, None, biased.bias)
    assert fused_feed_forward_weights(dense, split) is None
