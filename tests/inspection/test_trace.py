import itertools
from typing import Any

import pytest
import torch
from torch import Tensor

from helpers.errors import refused
from helpers.hugging_face import random_tokens
from helpers.layers import randomize
from smht.inspection import Step, Trace, trace
from smht.layers.block import SPLITTABLE
from smht.models import (
    SmhtConfig,
    SmhtForCausalLM,
    SmhtForSeq2SeqLM,
    SmhtForSequenceClassification,
    SmhtModel,
    preset_config,
)

MODELS = {"decoder": SmhtForCausalLM, "encoder": SmhtForSequenceClassification, "encoder_decoder": SmhtForSeq2SeqLM}
VARIANTS: list[dict[str, Any]] = [
    {},
    {"split": ()},
    {"split": ("output",), "mixing": "shuffle"},
    {"mixing": "shuffle", "norm_scope": "head", "projection_bias": True},
    {"norm_placement": "post", "position_embedding": "sinusoidal"},
    {"position_embedding": "rotary", "attention_pattern": "block_sparse", "sparse_block_size": 2},
    {"position_embedding": "relative", "tie_word_embeddings": True},
]


def make(stack: str, **fields: Any) -> Any:
    torch.manual_seed(0)
    sizes = {"vocab_size": 37, "hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 4}
    config = SmhtConfig(stack=stack, max_position_embeddings=16, **sizes, **fields)
    config._attn_implementation = "eager"
    model = MODELS[stack](config).double()
    randomize(model)
    return model.eval()


def inputs_for(stack: str) -> dict[str, Tensor]:
    ids = random_tokens()
    return {"input_ids": ids, **({"decoder_input_ids": ids[:, :4]} if stack == "encoder_decoder" else {})}


def values(traced: Trace, **place: Any) -> dict[str, Tensor]:
    return {f"{step.number} {step.name}": step.value for step in traced.select(**place)}


def test_the_shapes_of_the_seed_step_by_step() -> None:
    model = SmhtForCausalLM(preset_config("smht-mini")).eval()
    steps = trace(model, input_ids=torch.tensor([[17, 52, 3, 88]])).steps
    wide, heads = (1, 4, 8), (1, 4, 4, 2)
    assert [(step.number, step.shape) for step in steps] == [
        ("0", (1, 4)),
        ("1", wide),
        ("2", wide),
        ("3a", wide),
        ("3b", heads),
        *[("3c", heads)] * 3,
        ("3d", (1, 4, 4, 4)),
        ("3e", heads),
        ("3f", wide),
        ("3g", wide),
        ("3h", wide),
        ("3i", wide),
        ("3j", heads),
        ("3k", (1, 4, 4, 4)),
        ("3k", heads),
        ("3l", wide),
        ("4", wide),
        ("5", (1, 4, 100)),
        ("6", (1, 4, 100)),
    ]
    weights = next(step.value for step in steps if step.number == "3d")
    torch.testing.assert_close(weights.sum(-1), torch.ones(1, 4, 4))
    assert not weights.triu(1).any()


@pytest.mark.parametrize("variant", VARIANTS, ids=str)
@pytest.mark.parametrize("stack", MODELS)
def test_each_step_follows_from_those_before(stack: str, variant: dict[str, Any]) -> None:
    model, inputs = make(stack, **variant), inputs_for(stack)
    traced = trace(model, **inputs)
    stacks = ["encoder", "decoder"] if stack == "encoder_decoder" else [""]
    for name in stacks:
        before = values(traced, number="2", stack=name)["2 position"]
        for layer in (0, 1):
            found = values(traced, layer=layer, stack=name)
            mixed = found["3d attention weights"] @ found["3c value of each head"].transpose(1, 2)
            torch.testing.assert_close(found["3e weighted values"], mixed.transpose(1, 2))
            torch.testing.assert_close(found["3f concatenation"], found["3e weighted values"].flatten(2))
            if model.config.norm_placement == "pre":
                torch.testing.assert_close(found["3h residual"], before + found["3g attention output"])
            before = found["3l residual"]
        if model.config.norm_placement == "post":
            continue
        block = model.model.decoder if name == "decoder" else model.model.encoder if name else model.model
        torch.testing.assert_close(values(traced, number="4", stack=name)["4 final LayerNorm"], block.norm(before))
    last = traced.steps[-1].value
    torch.testing.assert_close(last, traced.steps[-2].value.float().softmax(-1))


@pytest.mark.parametrize("variant", VARIANTS, ids=str)
@pytest.mark.parametrize("stack", MODELS)
def test_tracing_changes_nothing_bitwise(stack: str, variant: dict[str, Any]) -> None:
    model, inputs = make(stack, **variant), inputs_for(stack)

    def composed() -> Any:
        """The composed path: hooks on the projections keep the fused one away."""
        hooks = [m.register_forward_hook(lambda *_: None) for m in model.modules() if hasattr(m, "in_features")]
        try:
            with torch.no_grad():
                return model(**inputs)
        finally:
            for hook in hooks:
                hook.remove()

    expected = composed().logits
    model.config._attn_implementation = "sdpa"
    model.train()
    traced = trace(model, **inputs)
    assert torch.equal(traced.outputs.logits, expected)
    assert model.training and model.config._attn_implementation == "sdpa"
    assert not any(module._forward_hooks for module in model.modules())


@pytest.mark.parametrize("split", [subset for n in range(4) for subset in itertools.combinations(SPLITTABLE, n)])
def test_split_projections_are_those_of_each_head_alone(split: tuple[str, ...]) -> None:
    model = make("decoder", split=split)
    found = values(trace(model, **inputs_for("decoder")), layer=0)
    attention = model.model.layers[0].self_attn
    if "qkv" in split:
        by_head = torch.einsum("bthk,hkl->bthl", found["3b heads"], attention.v_proj.weight)
        torch.testing.assert_close(found["3c value of each head"], by_head)
    assert ("3j heads" in found) == ("feed_forward" in split)
    formula = next(step.formula for step in trace(model, **inputs_for("decoder")).select("3g"))
    assert ("mixes the heads" in formula) == ("output" not in split)


def test_an_error_in_the_model_leaves_no_hooks() -> None:
    model = make("decoder").train()
    with refused("outside the vocabulary"):
        trace(model, input_ids=torch.tensor([[99]]))
    assert model.training
    assert not any(module._forward_hooks for module in model.modules())


def test_a_model_without_a_head_ends_with_the_last_norm() -> None:
    model = SmhtModel(SmhtConfig(stack="encoder", hidden_size=8, num_attention_heads=2, num_hidden_layers=1))
    steps: tuple[Step, ...] = trace(model.eval(), input_ids=torch.tensor([[1, 2]])).steps
    assert steps[-1].number == "4"


def test_steps_that_are_not_there() -> None:
    traced = trace(make("decoder"), **inputs_for("decoder"))
    with refused("there is no step '3z'"):
        traced.select("3z")
    with refused("there is no block 2: they are 0 to 1"):
        traced.select(layer=2)
    with refused("no step is all of that"):
        traced.select("4", layer=0)
