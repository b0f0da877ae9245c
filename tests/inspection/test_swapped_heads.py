"""Swapped heads against models with weights exchanged; frozen heads against what they wrote."""

import copy
from collections.abc import Sequence
from typing import Any

import pytest
import torch
from torch import Tensor

from helpers.dense_models import embedded_model
from helpers.edited_models import (
    HEADS,
    NAMES,
    WIDTH,
    assert_same,
    block_of,
    every_stack,
    every_variant,
    inputs_for,
    make,
    run,
    stack_names,
)
from helpers.hugging_face import random_tokens
from smht.inspection import Drop, Freeze, Swap, edited_heads, trace
from smht.inspection.head_edits import ModelHeads
from smht.layers import SplitLinear


@pytest.mark.parametrize("variant", [{}, {"projection_bias": True}, {"mixing": "shuffle"}], ids=str)
def test_swapped_outputs_are_a_dense_model_with_columns_exchanged(variant: dict[str, Any]) -> None:
    model, inputs = make(**variant), inputs_for("decoder")
    dense = embedded_model(model).eval()
    block, width = dense.model.layers[1], WIDTH // HEADS
    shuffle = model.model.layers[1].mlp.shuffle
    order = torch.arange(WIDTH) if shuffle is None else shuffle.order
    first, second = order[:width], order[2 * width : 3 * width]
    with torch.no_grad():
        for projection in (block.self_attn.o_proj, block.mlp.down_proj):
            for weight in (projection.weight, projection.bias) if projection.bias is not None else (projection.weight,):
                weight[torch.cat([first, second])] = weight[torch.cat([second, first])]
    assert_same(run(model, inputs, [Swap(1, 0, 2)]), run(dense, inputs))


def test_swapped_outputs_of_dense_heads_are_read_by_each_others_weights() -> None:
    model, inputs = make(split=(), projection_bias=True), inputs_for("decoder")
    other = copy.deepcopy(model)
    with torch.no_grad():
        other.model.layers[0].self_attn.o_proj.weight.view(WIDTH, HEADS, -1)[:, [1, 3]] = model.model.layers[
            0
        ].self_attn.o_proj.weight.view(WIDTH, HEADS, -1)[:, [3, 1]]
    assert_same(run(model, inputs, [Swap(0, 1, 3)]), run(other, inputs))


@torch.no_grad()
def exchange(tensors: Sequence[Tensor], others: Sequence[Tensor]) -> None:
    for one, other in zip(tensors, others, strict=True):
        kept = one.clone()
        one.copy_(other)
        other.copy_(kept)


def own_weights(block: Any, head: int, parts: Sequence[str]) -> list[Tensor]:
    """A head's own matrices and biases, as views."""
    found = []
    for part in parts:
        for name, projection in getattr(block, NAMES[part]).named_children():
            if not name.endswith("_proj"):
                continue
            if isinstance(projection, SplitLinear):
                found.append(projection.weight.data[head])
            else:
                found.append(projection.weight.data.chunk(HEADS, 1 if name == "o_proj" else 0)[head])
            if projection.bias is not None and (isinstance(projection, SplitLinear) or name != "o_proj"):
                found.append(projection.bias.data.chunk(HEADS)[head])
    return found


@every_variant
@every_stack
@pytest.mark.parametrize("other_layer", [None, 1])
def test_swapped_weights_are_a_model_with_weights_exchanged(
    stack: str, variant: dict[str, Any], other_layer: int | None
) -> None:
    model, inputs = make(stack, **variant), inputs_for(stack)
    for name in stack_names(stack):
        other = copy.deepcopy(model)
        parts = ModelHeads(model).parts(name)
        first, second = block_of(other, name, 0), block_of(other, name, other_layer or 0)
        exchange(own_weights(first, 1, parts), own_weights(second, 2, parts))
        swap = Swap(0, 1, 2, other_layer, name, what="weights")
        assert_same(run(model, inputs, [swap]), run(other, inputs))


def test_swapping_all_weights_of_two_dense_heads_of_a_block_changes_nothing() -> None:
    model, inputs = make(split=()), inputs_for("decoder")
    assert_same(run(model, inputs, [Swap(0, 1, 2, what="weights")]), run(model, inputs))


@every_variant
@every_stack
def test_frozen_at_its_own_run_token_by_token_a_head_changes_nothing(stack: str, variant: dict[str, Any]) -> None:
    model, inputs = make(stack, **variant), inputs_for(stack)
    name = stack_names(stack)[-1]
    freeze = [Freeze(1, head, name, at="tokens") for head in range(HEADS)]
    assert_same(run(model, inputs, freeze, "live", inputs), run(model, inputs))


def test_a_frozen_block_passes_on_only_what_the_block_before_it_changed() -> None:
    model, inputs = make(), inputs_for("decoder")
    whole = trace(model, **inputs)
    freeze = [Freeze(1, head, at="tokens") for head in range(HEADS)]
    with edited_heads(model, [Drop(0, 2), *freeze], reference=inputs):
        edited = trace(model, **inputs)
    changes = [edited.select("3l", layer)[0].value - whole.select("3l", layer)[0].value for layer in (0, 1)]
    assert changes[0].norm() > 0.1
    assert_same(changes[1], changes[0])


def test_a_head_frozen_at_its_mean_writes_the_mean_of_the_reference() -> None:
    model, inputs = make("decoder"), inputs_for("decoder")
    reference = {"input_ids": random_tokens(3, 5, seed=1)}
    step = trace(model, **reference).select("3g", 0)[0].value
    width = WIDTH // HEADS
    mean = step[..., width : 2 * width].mean((0, 1))
    with edited_heads(model, [Freeze(0, 1, parts=("attention",))], reference=reference):
        written = trace(model, **inputs).select("3g", 0)[0].value[..., width : 2 * width]
    assert_same(written, mean.expand_as(written))


def test_padding_does_not_count_in_the_mean() -> None:
    model, inputs = make("decoder"), inputs_for("decoder")
    ids, mask = torch.cat([random_tokens(2, 4), random_tokens(2, 2, seed=3)], 1), torch.ones(2, 6, dtype=torch.long)
    mask[:, 4:] = 0
    freeze = [Freeze(0, 1), Freeze(1, 3)]
    padded = run(model, inputs, freeze, "live", {"input_ids": ids, "attention_mask": mask})
    assert_same(padded, run(model, inputs, freeze, "live", {"input_ids": ids[:, :4]}))
