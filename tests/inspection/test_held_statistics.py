"""Held statistics against plain arithmetic, and whole chunks dropped."""

import copy
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from helpers.edited_models import (
    HEADS,
    WIDTH,
    assert_same,
    block_of,
    every_stack,
    every_variant,
    inputs_for,
    make,
    run,
    silence,
    stack_names,
)
from helpers.layers import composed_path
from smht.inspection import Drop, DropLineage, head_logits


def by_hand(model: Any, ids: Tensor, dropped: tuple[int, int] | None, held: list[tuple[Tensor, Tensor]] | None) -> Any:
    """A split pre-norm decoder in plain arithmetic; logits, and each norm's mean and variance."""
    stack, statistics = model.model, []

    def norm(module: Any, x: Tensor) -> Tensor:
        mine = (x.mean(-1, keepdim=True), x.var(-1, correction=0, keepdim=True))
        mean, variance = mine if held is None else held[len(statistics)]
        statistics.append(mine)
        return (x - mean) / (variance + module.eps).sqrt() * module.weight + module.bias

    def split(module: Any, x: Tensor) -> Tensor:
        return torch.cat([x_h @ w for x_h, w in zip(x.chunk(HEADS, -1), module.weight, strict=True)], -1)

    def without(layer: int, x: Tensor) -> Tensor:
        kept = torch.ones(WIDTH)
        if dropped is not None and dropped[0] == layer:
            kept.view(HEADS, -1)[dropped[1]] = 0
        return x * kept

    x = stack.embed_tokens.weight[ids] + stack.embed_positions.weight[: ids.shape[1]]
    later = torch.ones(ids.shape[1], ids.shape[1]).triu(1).bool()
    for layer, block in enumerate(stack.layers):
        attention, y = block.self_attn, norm(block.input_layernorm, x)
        q, k, v = (split(getattr(attention, f"{name}_proj"), y).chunk(HEADS, -1) for name in "qkv")
        scores = [
            (q_h @ k_h.mT / (WIDTH // HEADS) ** 0.5).masked_fill(later, -torch.inf)
            for q_h, k_h in zip(q, k, strict=True)
        ]
        mixed = torch.cat([s.softmax(-1) @ v_h for s, v_h in zip(scores, v, strict=True)], -1)
        x = x + without(layer, split(attention.o_proj, mixed))
        y = norm(block.post_attention_layernorm, x)
        x = x + without(layer, split(block.mlp.down_proj, F.gelu(split(block.mlp.up_proj, y))))
    return norm(stack.norm, x) @ model.lm_head.weight.T, statistics


@torch.no_grad()
@pytest.mark.parametrize("head", [(0, 1), (1, 2)])
def test_held_statistics_against_plain_arithmetic(head: tuple[int, int]) -> None:
    model, inputs = make(), inputs_for("decoder")
    logits, statistics = by_hand(model, inputs["input_ids"], None, None)
    assert_same(run(model, inputs), logits)
    assert_same(run(model, inputs, [Drop(*head)]), by_hand(model, inputs["input_ids"], head, None)[0])
    assert_same(run(model, inputs, [Drop(*head)], "held"), by_hand(model, inputs["input_ids"], head, statistics)[0])


@every_variant
@every_stack
def test_without_edits_the_statistics_held_are_those_of_the_run(stack: str, variant: dict[str, Any]) -> None:
    model, inputs = make(stack, **variant), inputs_for(stack)
    with composed_path(model), torch.no_grad():
        composed = model(**inputs, use_cache=False).logits
    assert torch.equal(run(model, inputs), composed)
    assert_same(run(model, inputs, (), "held"), composed)


@every_stack
def test_held_statistics_are_those_of_the_model_before_the_edit(stack: str) -> None:
    """The same edit made in the weights, with every norm's unedited statistics put in by hand."""
    model, inputs = make(stack), inputs_for(stack)
    seen: dict[str, tuple[Tensor, Tensor]] = {}
    norms = {name: module for name, module in model.named_modules() if isinstance(module, torch.nn.LayerNorm)}
    edited = copy.deepcopy(model)
    name = stack_names(stack)[0]
    for part in ("attention", "feed_forward"):
        silence(block_of(edited, name, 0), part, 2)
    for path, norm in norms.items():
        handle = norm.register_forward_hook(
            lambda _, given, output, path=path: seen.update({path: torch.std_mean(given[0], -1, False, keepdim=True)})
        )
        with torch.no_grad():
            model(**inputs)
        handle.remove()

    def put(path: str) -> Any:
        def hook(norm: Any, given: Any, output: Tensor) -> Tensor:
            deviation, mean = seen[path]
            return (given[0] - mean) / (deviation**2 + norm.eps).sqrt() * norm.weight + norm.bias

        return hook

    for path in norms:
        edited.get_submodule(path).register_forward_hook(put(path))
    assert_same(run(model, inputs, [Drop(0, 2, name)], "held"), run(edited, inputs))


@given(layers=st.integers(1, 4), head=st.integers(0, HEADS - 1), placement=st.sampled_from(["pre", "post"]))
def test_a_lineage_dropped_with_held_statistics_takes_its_contribution_along(
    layers: int, head: int, placement: str
) -> None:
    model, inputs = make(num_hidden_layers=layers, norm_placement=placement), inputs_for("decoder")
    contribution = head_logits(model, **inputs).contributions[:, :, head]
    assert_same(run(model, inputs, [DropLineage(head)], "held"), run(model, inputs) - contribution)


@every_stack
def test_with_a_norm_a_head_a_lineage_leaves_the_others_alone(stack: str) -> None:
    model, inputs = make(stack, norm_scope="head"), inputs_for(stack)
    found = head_logits(model, **inputs)
    assert_same(run(model, inputs, [DropLineage(3)]), found.contributions[..., :3, :].sum(-2))
