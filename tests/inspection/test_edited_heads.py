"""Edits against models built with other weights, GPT-2 among them, and held statistics against plain arithmetic."""

import copy
from collections.abc import Sequence
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor
from transformers import GPT2Config, GPT2LMHeadModel

from helpers.dense_models import embedded_model
from helpers.errors import refused
from helpers.hugging_face import random_tokens
from helpers.layers import composed_path, randomize
from smht.inspection import Drop, DropLineage, Freeze, Swap, edited_heads, head_logits, trace
from smht.inspection.head_edits import ModelHeads
from smht.layers import SplitLinear
from smht.models import SmhtConfig, SmhtForCausalLM, SmhtForSeq2SeqLM, SmhtForSequenceClassification, SmhtModel

MODELS = {"decoder": SmhtForCausalLM, "encoder": SmhtForSequenceClassification, "encoder_decoder": SmhtForSeq2SeqLM}
HEADS, WIDTH = 4, 16
NAMES = {"attention": "self_attn", "cross_attention": "cross_attn", "feed_forward": "mlp"}
VARIANTS: list[dict[str, Any]] = [
    {},
    {"split": ()},
    {"split": ("qkv", "feed_forward"), "mixing": "shuffle"},
    {"split": ("output",), "projection_bias": True},
    {"mixing": "shuffle", "norm_scope": "head", "projection_bias": True},
    {"split": (), "projection_bias": True, "position_embedding": "relative"},
    {"norm_placement": "post", "position_embedding": "rotary"},
]
every_variant = pytest.mark.parametrize("variant", VARIANTS, ids=str)
every_stack = pytest.mark.parametrize("stack", MODELS)


def make(stack: str = "decoder", **fields: Any) -> Any:
    torch.manual_seed(0)
    sizes = {"vocab_size": 37, "hidden_size": WIDTH, "num_hidden_layers": 2, "num_attention_heads": HEADS}
    model = MODELS[stack](SmhtConfig(stack=stack, max_position_embeddings=16, **{**sizes, **fields})).double()
    randomize(model)
    return model.eval()


def inputs_for(stack: str, batch: int = 2) -> dict[str, Tensor]:
    ids = random_tokens(batch)
    return {"input_ids": ids, **({"decoder_input_ids": ids[:, :4]} if stack == "encoder_decoder" else {})}


@torch.no_grad()
def run(model: Any, inputs: dict[str, Tensor], edits: Sequence[Any] = (), *options: Any) -> Tensor:
    with edited_heads(model, edits, *options):
        return model(**inputs, use_cache=False).logits


def assert_same(found: Tensor, expected: Tensor) -> None:
    torch.testing.assert_close(found, expected, rtol=1e-12, atol=1e-12)


def stack_names(stack: str) -> list[str]:
    return ["encoder", "decoder"] if stack == "encoder_decoder" else [""]


def block_of(model: Any, stack: str, layer: int) -> Any:
    return (getattr(model.model, stack) if stack else model.model).layers[layer]


@torch.no_grad()
def silence(block: Any, part: str, head: int) -> None:
    """Set what carries a head's part into the residual stream to zero."""
    sublayer = getattr(block, NAMES[part])
    projection = sublayer.down_proj if part == "feed_forward" else sublayer.o_proj
    width = WIDTH // HEADS
    if isinstance(projection, SplitLinear):
        projection.weight[head] = 0
        if projection.bias is not None:
            projection.bias[head * width : (head + 1) * width] = 0
    else:
        projection.weight[:, head * width : (head + 1) * width] = 0


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
