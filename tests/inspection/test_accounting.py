import itertools
import json
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode
from transformers import PreTrainedModel

from smht.errors import UsageError
from smht.inspection import Accounting, Costs, account, compare
from smht.layers.block import SPLITTABLE
from smht.layers.position import POSITION_ENCODINGS
from smht.models import SmhtConfig, SmhtForCausalLM, SmhtForSeq2SeqLM, SmhtModel, preset_config
from smht.models.cache_argument import CACHE_ARGUMENT
from smht.models.configuration import STACKS

SUBSETS = [subset for size in range(4) for subset in itertools.combinations(SPLITTABLE, size)]


@st.composite
def configs(draw: st.DrawFn) -> SmhtConfig:
    """Small models of every kind."""
    split = draw(st.sampled_from(SUBSETS))
    heads = draw(st.integers(1, 4))
    head_width = draw(st.integers(1, 4))
    hidden = draw(st.integers(1, 24))
    stack = draw(st.sampled_from(STACKS))
    positions = [kind for kind in POSITION_ENCODINGS if kind != "rotary" or head_width % 2 == 0]
    sparse, context = draw(st.booleans()), draw(st.integers(1, 12))
    return SmhtConfig(
        stack=stack,
        num_decoder_layers=draw(st.integers(1, 3)) if stack == "encoder_decoder" else None,
        norm_placement=draw(st.sampled_from(["pre", "post"])),
        position_embedding=draw(st.sampled_from(positions)),
        attention_pattern="block_sparse" if sparse else "full",
        sparse_block_size=draw(st.integers(1, min(4, context))) if sparse else None,
        vocab_size=draw(st.integers(1, 40)),
        hidden_size=heads * head_width,
        num_hidden_layers=draw(st.integers(1, 3)),
        num_attention_heads=heads,
        intermediate_size=hidden * heads if "feed_forward" in split else hidden,
        max_position_embeddings=context,
        split=split,
        mixing=draw(st.sampled_from(["none", "shuffle"])) if split and heads > 1 and head_width > 1 else "none",
        norm_scope=draw(st.sampled_from(["model", "head"])) if head_width > 1 else "model",
        projection_bias=draw(st.booleans()),
        tie_word_embeddings=draw(st.booleans()),
    )


def build(config: SmhtConfig) -> PreTrainedModel:
    """The model of a stack with its head, if it has one; attention as matrix products, which PyTorch counts."""
    config._attn_implementation = "sdpa" if config.attention_pattern == "block_sparse" else "eager"
    model = {"decoder": SmhtForCausalLM, "encoder": SmhtModel, "encoder_decoder": SmhtForSeq2SeqLM}[config.stack]
    return model(config).eval()


def count_flops(model: PreTrainedModel, batch: int, tokens: int) -> tuple[FlopCounterMode, Any]:
    """What a forward pass over `[batch, tokens]` multiplies, and its outputs."""
    ids = torch.zeros(batch, tokens, dtype=torch.long)
    inputs = {"input_ids": ids, **({"decoder_input_ids": ids} if model.config.is_encoder_decoder else {})}
    with torch.no_grad(), sdpa_kernel(SDPBackend.MATH), FlopCounterMode(display=False) as counter:
        return counter, model(**inputs)


def cached_tensors(cache: Any) -> list[torch.Tensor]:
    """Keys and values of every layer, of both attentions where there are two."""
    caches = [cache.self_attention_cache, cache.cross_attention_cache] if hasattr(cache, "is_updated") else [cache]
    return [tensor for part in caches for layer in part.layers for tensor in (layer.keys, layer.values)]


def check_against_model(config: SmhtConfig, context: int, batch: int, dtype: torch.dtype) -> None:
    model = build(config).to(dtype)  # pyright: ignore[reportArgumentType]
    counter, outputs = count_flops(model, batch, context)
    accounting = account(config, context, dtype)
    tokens = batch * context
    assert accounting.total.parameters == sum(parameter.numel() for parameter in model.parameters())
    is_whole = config.attention_pattern == "full" or context % min(config.sparse_block_size or 1, context) == 0
    if is_whole:
        assert accounting.total.multiply_adds * tokens * 2 == counter.get_total_flops()
    else:
        # Rounded up to whole numbers, once a layer.
        layers = config.num_hidden_layers + (config.num_decoder_layers or 0)
        assert 0 <= accounting.total.multiply_adds * tokens * 2 - counter.get_total_flops() < layers * tokens * 2
    cache = cached_tensors(outputs[CACHE_ARGUMENT]) if config.stack != "encoder" else []
    assert accounting.total.cache_values * tokens == sum(tensor.numel() for tensor in cache)
    assert accounting.cache_bytes * tokens == sum(tensor.untyped_storage().nbytes() for tensor in cache)


@given(config=configs(), data=st.data())
@settings(deadline=None, max_examples=40)
def test_totals_are_what_pytorch_counts(config: SmhtConfig, data: st.DataObject) -> None:
    check_against_model(
        config,
        context=data.draw(st.integers(1, config.max_position_embeddings)),
        batch=data.draw(st.integers(1, 3)),
        dtype=data.draw(st.sampled_from([torch.float32, torch.float64, torch.bfloat16])),
    )


@pytest.mark.parametrize("split", SUBSETS)
@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("tied", [False, True])
def test_totals_of_every_combination_of_split_bias_and_tying(split: tuple[str, ...], bias: bool, tied: bool) -> None:
    config = SmhtConfig(
        vocab_size=11,
        hidden_size=12,
        num_hidden_layers=2,
        num_attention_heads=3,
        intermediate_size=15,
        max_position_embeddings=7,
        split=split,
        projection_bias=bias,
        tie_word_embeddings=tied,
    )
    check_against_model(config, context=5, batch=2, dtype=torch.float32)


@given(config=configs())
@settings(deadline=None, max_examples=20)
def test_each_part_is_what_its_modules_hold_and_multiply(config: SmhtConfig) -> None:
    modules = {
        "token embedding": ["embed_tokens"],
        "position embedding": ["embed_positions"],
        "query, key, value": ["self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"],
        "attention output": ["self_attn.o_proj"],
        "memory: query, key, value": ["cross_attn.q_proj", "cross_attn.k_proj", "cross_attn.v_proj"],
        "memory: attention output": ["cross_attn.o_proj"],
        "feed-forward": ["mlp"],
        "layer norms": ["input_layernorm", "post_attention_layernorm", "cross_attention_layernorm"],
        "final layer norm": ["norm"],
        "language-model head": ["lm_head"],
    }
    model = build(config)
    tokens = config.max_position_embeddings
    counter, _ = count_flops(model, 1, tokens)
    flops = {
        f".{name}.".replace(f".{type(model).__name__}.", ".", 1): sum(by_op.values())
        for name, by_op in counter.flop_counts.items()
    }
    # named_parameters leaves out the second name of a tied weight, as an accounting does.
    parameters = {f".{name}": weight.numel() for name, weight in model.named_parameters()}
    for part in account(config).parts:
        stack, _, name = (
            part.name.partition(": ") if part.name.startswith(("encoder", "decoder")) else ("", "", part.name)
        )
        if name.endswith("scores and mixing"):
            assert part.costs.parameters == 0
            continue
        inside = [other for other in parameters if f".{stack}." in other or not stack]
        owned = [parameters[other] for other in inside if any(f".{module}." in other for module in modules[name])]
        multiplied = [
            count
            for other, count in flops.items()
            if (f".{stack}." in other or not stack) and any(other.endswith(f".{module}.") for module in modules[name])
        ]
        assert part.costs.parameters == sum(owned), part.name
        assert part.costs.multiply_adds * tokens * 2 == sum(multiplied), part.name


@given(config=configs(), data=st.data())
@settings(deadline=None, max_examples=20)
def test_causal_attention_leaves_out_the_masked_pairs(config: SmhtConfig, data: st.DataObject) -> None:
    context = data.draw(st.integers(1, config.max_position_embeddings))
    accounting = account(config, context)
    if config.stack != "decoder" or config.attention_pattern != "full":
        assert accounting.causal_attention is None
        return
    full = accounting.part("attention scores and mixing").costs.multiply_adds
    allowed = torch.ones(context, context).tril().sum().item()
    assert accounting.causal_attention is not None
    assert accounting.causal_attention * context**2 == full * allowed


def test_mini_model_of_section_5() -> None:
    comparison = compare(preset_config("smht-mini"))
    dense, split = comparison.dense, comparison.model

    def parameters(*names: str) -> tuple[int, int]:
        return tuple(sum(side.part(name).costs.parameters for name in names) for side in (dense, split))  # pyright: ignore[reportReturnType]

    assert parameters("query, key, value") == (192, 48)
    assert parameters("attention output") == (64, 16)
    assert parameters("feed-forward") == (256, 64)
    assert parameters("query, key, value", "attention output", "feed-forward") == (512, 128)
    assert parameters("layer norms", "final layer norm") == (48, 48)
    assert parameters("token embedding") == (800, 800)
    assert parameters("position embedding") == (128, 128)
    assert parameters("language-model head") == (800, 800)
    assert (dense.total.parameters, split.total.parameters) == (2288, 1904)


@pytest.mark.parametrize(("preset", "millions"), [("andrea-12m", 12.8), ("andrea-120m", 98.7), ("andrea-480m", 480.6)])
def test_andrea_models_of_seed_002(preset: str, millions: float) -> None:
    dense, split = account(preset_config(preset)), account(preset_config(f"{preset}-split"))
    assert round(dense.total.parameters / 1e6, 1) == millions
    for name in ("query, key, value", "attention output", "feed-forward"):
        heads = preset_config(preset).num_attention_heads
        assert split.part(name).costs.parameters * heads == dense.part(name).costs.parameters


def test_attention_weights_of_seed_002() -> None:
    accounting = account(preset_config("andrea-120m"))
    attention = accounting.part("query, key, value"), accounting.part("attention output")
    assert sum(part.each.parameters for part in attention) == 2_359_296
    assert sum(part.costs.parameters for part in attention) == 28_311_552


def test_a_tied_head_multiplies_but_owns_nothing() -> None:
    head = account(preset_config("smht-mini", tie_word_embeddings=True)).part("language-model head").costs
    assert head == Costs(parameters=0, multiply_adds=800)


def test_context_and_cache_dtype_have_defaults() -> None:
    config = preset_config("smht-mini")
    assert account(config) == account(config, 16, torch.float32)
    config.dtype = torch.bfloat16
    assert account(config) == account(config, 16, torch.bfloat16)
    assert account(config).cache_bytes == 2 * 8 * 2


@pytest.mark.parametrize("context", [0, -3, 17])
def test_a_context_that_the_model_lacks_is_refused(context: int) -> None:
    with pytest.raises(UsageError, match=rf"context = {context} must be from 1 to the model's 16 positions"):
        account(preset_config("smht-mini"), context)


def test_parts_that_do_not_sum_to_the_total_are_refused() -> None:
    whole = account(preset_config("smht-mini"))
    with pytest.raises(ValueError, match="the parts sum to"):
        Accounting(whole.parts[1:], whole.total, whole.context, whole.causal_attention, whole.dtype)


def test_an_unknown_part_is_refused_with_the_nearest() -> None:
    with pytest.raises(UsageError, match="did you mean feed-forward"):
        account(preset_config("smht-mini")).part("feed forward")


def test_accounting_as_json() -> None:
    accounting = account(preset_config("smht-mini", num_hidden_layers=3), context=4)
    data = accounting.to_dict()
    assert json.loads(json.dumps(data)) == data
    assert (data["context"], data["cache_dtype"]) == (4, "float32")
    assert data["total"]["cache_bytes"] == accounting.cache_bytes == 3 * 2 * 8 * 4
    for measure in ("parameters", "multiply_adds", "cache_values", "cache_bytes"):
        assert sum(part[measure] for part in data["parts"]) == data["total"][measure]
