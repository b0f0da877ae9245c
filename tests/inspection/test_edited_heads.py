"""Dropped heads against models built with zeros among their weights, GPT-2 among them; what holds for every edit."""

import copy
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from transformers import GPT2Config, GPT2LMHeadModel

from helpers.edited_models import (
    HEADS,
    MODELS,
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
from helpers.errors import refused
from helpers.hugging_face import random_tokens
from smht.inspection import Drop, DropLineage, Freeze, Swap, edited_heads, trace
from smht.inspection.head_edits import ModelHeads
from smht.layers.block import SPLITTABLE
from smht.models import SmhtConfig, SmhtForCausalLM, SmhtModel


@every_variant
@every_stack
def test_dropping_is_a_model_with_zeros_among_its_weights(stack: str, variant: dict[str, Any]) -> None:
    model, inputs = make(stack, **variant), inputs_for(stack)
    parts = ModelHeads(model)
    for name in stack_names(stack):
        for layer, head in ((0, 1), (1, 3)):
            other = copy.deepcopy(model)
            for part in parts.parts(name):
                silence(block_of(other, name, layer), part, head)
            assert_same(run(model, inputs, [Drop(layer, head, name)]), run(other, inputs))


@st.composite
def architectures(draw: st.DrawFn) -> dict[str, Any]:
    heads, width = draw(st.integers(1, 5)), draw(st.integers(2, 5))
    return {
        "stack": draw(st.sampled_from(list(MODELS))),
        "num_attention_heads": heads,
        "hidden_size": heads * width,
        "intermediate_size": heads * draw(st.integers(1, 6)),
        "num_hidden_layers": draw(st.integers(1, 3)),
        "split": tuple(draw(st.sets(st.sampled_from(SPLITTABLE)))),
        "mixing": draw(st.sampled_from(["none", "shuffle"])),
        "norm_scope": draw(st.sampled_from(["model", "head"])),
        "norm_placement": draw(st.sampled_from(["pre", "post"])),
        "projection_bias": draw(st.booleans()),
    }


@given(architectures(), st.data())
def test_any_heads_of_any_model_can_be_dropped(fields: dict[str, Any], data: st.DataObject) -> None:
    if fields["mixing"] == "shuffle" and (not fields["split"] or fields["num_attention_heads"] == 1):
        fields["mixing"] = "none"  # refused: a dense model, or one head, has nothing to mix
    model, inputs = make(**fields), inputs_for(fields["stack"])
    heads = ModelHeads(model)
    drops = data.draw(st.lists(st.sampled_from(heads.every_head()), unique=True))
    other = copy.deepcopy(model)
    for drop in drops:
        for part in heads.parts(drop.stack):
            silence(block_of(other, drop.stack, drop.layer), part, drop.head)
    assert_same(run(model, inputs, drops), run(other, inputs))
    shown = run(model, inputs, drops, "held")
    assert shown.isfinite().all() and shown.shape == run(model, inputs).shape


def test_one_part_alone_and_several_heads_at_once() -> None:
    model, inputs = make("encoder_decoder"), inputs_for("encoder_decoder")
    edits = [Drop(0, 1, "decoder", ("cross_attention",)), Drop(1, 0, "encoder", ("feed_forward", "attention"))]
    other = copy.deepcopy(model)
    silence(block_of(other, "decoder", 0), "cross_attention", 1)
    for part in ("attention", "feed_forward"):
        silence(block_of(other, "encoder", 1), part, 0)
    assert_same(run(model, inputs, edits), run(other, inputs))


@torch.no_grad()
def gpt2_of(model: SmhtForCausalLM) -> GPT2LMHeadModel:
    """GPT-2 with the weights of a dense model."""
    config = model.config
    gpt2 = GPT2LMHeadModel(
        GPT2Config(
            vocab_size=config.vocab_size,
            n_embd=WIDTH,
            n_layer=config.num_hidden_layers,
            n_head=HEADS,
            n_inner=config.intermediate_size,
            n_positions=config.max_position_embeddings,
            activation_function="gelu",
            tie_word_embeddings=False,
            bos_token_id=None,
            eos_token_id=None,
        )
    )
    gpt2.double().eval()
    state = {name: torch.zeros_like(value) for name, value in gpt2.state_dict().items()}
    own = model.state_dict()
    state["transformer.wte.weight"] = own["model.embed_tokens.weight"]
    state["transformer.wpe.weight"] = own["model.embed_positions.weight"]
    state["lm_head.weight"] = own["lm_head.weight"]
    for end in ("weight", "bias"):
        state[f"transformer.ln_f.{end}"] = own[f"model.norm.{end}"]
        for layer in range(config.num_hidden_layers):
            state[f"transformer.h.{layer}.ln_1.{end}"] = own[f"model.layers.{layer}.input_layernorm.{end}"]
            state[f"transformer.h.{layer}.ln_2.{end}"] = own[f"model.layers.{layer}.post_attention_layernorm.{end}"]
    for layer in range(config.num_hidden_layers):
        there, here = f"transformer.h.{layer}", f"model.layers.{layer}"
        qkv = [own[f"{here}.self_attn.{letter}_proj.weight"].T for letter in "qkv"]
        state[f"{there}.attn.c_attn.weight"] = torch.cat(qkv, 1)
        state[f"{there}.attn.c_proj.weight"] = own[f"{here}.self_attn.o_proj.weight"].T
        state[f"{there}.mlp.c_fc.weight"] = own[f"{here}.mlp.up_proj.weight"].T
        state[f"{there}.mlp.c_proj.weight"] = own[f"{here}.mlp.down_proj.weight"].T
    gpt2.load_state_dict(state)
    return gpt2


@given(st.sets(st.tuples(st.integers(0, 1), st.integers(0, HEADS - 1)), min_size=1))
def test_dropping_dense_heads_is_a_gpt2_with_zeros_in_its_output_projection(heads: set[tuple[int, int]]) -> None:
    model, inputs = make(split=()), inputs_for("decoder")
    gpt2 = gpt2_of(model)
    width = WIDTH // HEADS
    with torch.no_grad():
        for layer, head in heads:
            gpt2.transformer.h[layer].attn.c_proj.weight[head * width : (head + 1) * width] = 0
        expected = gpt2(**inputs).logits
    assert_same(run(model, inputs, [Drop(layer, head) for layer, head in heads]), expected)


@pytest.mark.parametrize("statistics", ["live", "held"])
def test_without_any_head_only_the_embeddings_are_left(statistics: str) -> None:
    model, inputs = make(mixing="shuffle"), inputs_for("decoder")
    found = run(model, inputs, ModelHeads(model).every_head(), statistics)
    with torch.no_grad():
        embedded = model.model.embed_tokens(inputs["input_ids"]) + model.model.embed_positions.weight[:6]
        if statistics == "live":
            expected = model.lm_head(model.model.norm(embedded))
        else:
            unedited = trace(model, **inputs).select("3l", 1)[0].value  # what the last norm reads in the unedited run
            mean, variance = unedited.mean(-1, keepdim=True), unedited.var(-1, correction=0, keepdim=True)
            normalised = (embedded - mean) / (variance + model.config.layer_norm_eps).sqrt()
            expected = model.lm_head(normalised * model.model.norm.weight + model.model.norm.bias)
    assert_same(found, expected)


@every_stack
@pytest.mark.parametrize("statistics", ["live", "held"])
def test_the_model_is_afterwards_what_it_was(stack: str, statistics: str) -> None:
    model, inputs = make(stack), inputs_for(stack)
    model.train()
    model.model.eval()
    before, kept = model(**inputs).logits, copy.deepcopy(model.state_dict())
    modes = {name: module.training for name, module in model.named_modules()}
    name = stack_names(stack)[0]
    edits = [Drop(0, 1, name), Freeze(1, 2, name), Swap(0, 2, 3, 1, name, what="weights"), Swap(1, 0, 1, stack=name)]
    with pytest.raises(KeyError), edited_heads(model, edits, statistics, inputs):
        model(**inputs)
        raise KeyError
    with refused("outside the vocabulary"), edited_heads(model, edits, statistics, inputs):
        model(input_ids=torch.tensor([[99]]), decoder_input_ids=inputs.get("decoder_input_ids"))
    assert torch.equal(model(**inputs).logits, before)
    assert all(torch.equal(value, kept[key]) for key, value in model.state_dict().items())
    assert {name: module.training for name, module in model.named_modules()} == modes
    assert not any(module._forward_hooks or module._forward_pre_hooks for module in model.modules())


@pytest.mark.parametrize("statistics", ["live", "held"])
@pytest.mark.parametrize("stack", ["decoder", "encoder_decoder"])
def test_text_is_generated_by_the_edited_model(stack: str, statistics: str) -> None:
    model, inputs = make(stack, bos_token_id=1, pad_token_id=0), {"input_ids": random_tokens(1, 4)}
    options = {"max_new_tokens": 5, "do_sample": False, "use_cache": False, "eos_token_id": None}
    edits = [Drop(0, 1, stack_names(stack)[-1]), Drop(1, 2, stack_names(stack)[0])]
    with edited_heads(model, edits, statistics):
        written = model.generate(**inputs, **options)
    tokens = inputs["input_ids"] if stack == "decoder" else torch.tensor([[1]])
    for _ in range(5):
        given = {"input_ids": tokens} if stack == "decoder" else {**inputs, "decoder_input_ids": tokens}
        tokens = torch.cat([tokens, run(model, given, edits, statistics)[:, -1:].argmax(-1)], 1)
    assert torch.equal(written, tokens)
    if statistics == "live":
        with edited_heads(model, edits):
            assert torch.equal(model.generate(**inputs, **{**options, "use_cache": True}), written)


def test_gradients_pass_through_edits() -> None:
    model, inputs = make(), inputs_for("decoder")
    with edited_heads(model, [Drop(0, 1)], "held"):
        model(**inputs).logits.sum().backward()
    gradient = model.model.layers[0].self_attn.o_proj.weight.grad
    assert not gradient[1].any()
    assert gradient[0].any()


def test_what_is_refused() -> None:
    model, dense, two = make(), make(split=()), make("encoder_decoder")
    wrong = [
        (model, [Drop(2, 0)], ("there is no layer 2: they are 0 to 1",)),
        (model, [Drop(0, 4)], ("there is no head 4: they are 0 to 3",)),
        (model, [Drop(-1, 0)], ("there is no layer -1",)),
        (model, [Swap(0, 1, 7)], ("there is no head 7",)),
        (model, [Swap(0, 1, 1)], ("layer 0 head 1 is swapped with itself",)),
        (model, [Swap(0, 1, 1, 1)], ("outputs of layers 0 and 1 cannot change places", "swap weights")),
        (model, [Swap(0, 1, 2, what="both")], ("what = 'both'",)),
        (model, [Drop(0, 1), Freeze(0, 1, parts=("attention",))], ("layer 0 head 1 is edited twice (attention)",)),
        (model, [DropLineage(1), Drop(0, 1)], ("edited twice",)),
        (model, [Drop(0, 1, parts=())], ("no part", "attention, feed_forward")),
        (model, [Drop(0, 1, parts=("feedforward",))], ("did you mean feed_forward",)),
        (model, [Drop(0, 1, parts=("cross_attention",))], ("no cross_attention here, since there is no memory",)),
        (model, [Drop(0, 1, "decoder")], ("no stack 'decoder'", "without it")),
        (dense, [Drop(0, 1, parts=("feed_forward",))], ("no feed_forward here, since it is dense",)),
        (dense, [DropLineage(0)], ("no lineage to drop", "dense projections", "drop heads of layers")),
        (make(mixing="shuffle"), [DropLineage(0)], ("no lineage", "shuffle mixing")),
        (model, [DropLineage(4)], ("there is no head 4",)),
        (two, [Drop(0, 1)], ("two stacks: name 'encoder' or 'decoder'",)),
        (model, [Freeze(0, 1)], ("give its inputs as reference",)),
    ]
    for owner, edits, says in wrong:
        with refused(*says), edited_heads(owner, edits):
            pass
    with refused("statistics = 'hold'", "did you mean held"), edited_heads(model, [], "hold"):
        pass
    freeze: Any = Freeze(0, 1, at="median")
    with refused("at = 'median'"), edited_heads(model, [freeze], reference=inputs_for("decoder")):
        pass
    with edited_heads(model, []), refused("being edited already"), edited_heads(model, []):
        pass


def test_what_is_refused_while_running() -> None:
    model, two = make(), make("encoder_decoder")
    ids = random_tokens(1, 4)
    with edited_heads(model, [Drop(0, 1)], "held"), refused("without a cache: use_cache=False"):
        model.generate(ids, max_new_tokens=2, eos_token_id=None, pad_token_id=0)
    with (
        edited_heads(model, [Freeze(0, 1, at="tokens")], reference={"input_ids": ids}),
        refused("frozen token by token at a reference of [1, 4] tokens", "[1, 6]"),
    ):
        model(random_tokens(1, 6))
    encoded = two.model.encoder(ids)
    with edited_heads(two, [], "held"), refused("give the source as input_ids"):
        two(encoder_outputs=encoded, decoder_input_ids=ids)


def test_models_without_a_head_can_be_edited() -> None:
    model = SmhtModel(SmhtConfig(stack="encoder", vocab_size=37, hidden_size=WIDTH, num_attention_heads=HEADS)).eval()
    with torch.no_grad(), edited_heads(model, ModelHeads(model).every_head()):
        found = model(random_tokens()).last_hidden_state
    embedded = model.embed_tokens(random_tokens()) + model.embed_positions.weight[:6]
    torch.testing.assert_close(found, model.norm(embedded))


def test_a_model_and_its_base_are_one() -> None:
    model = make()
    with edited_heads(model, [Drop(0, 0)]), refused("are being edited already"), edited_heads(model.model, []):
        pass


@pytest.mark.parametrize("number", [0.0, True, "0", None])
def test_numbers_of_heads_are_whole_numbers(number: Any) -> None:
    with refused("there is no layer"), edited_heads(make(), [Drop(number, 0)]):
        pass
