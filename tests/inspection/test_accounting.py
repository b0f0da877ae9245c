import itertools
import json

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils.flop_counter import FlopCounterMode

from smht.errors import UsageError
from smht.inspection import Accounting, Costs, account, compare
from smht.layers.block import SPLITTABLE
from smht.models import SmhtConfig, SmhtForCausalLM, preset_config
from smht.models.cache_argument import CACHE_ARGUMENT

SUBSETS = [subset for size in range(4) for subset in itertools.combinations(SPLITTABLE, size)]


@st.composite
def configs(draw: st.DrawFn) -> SmhtConfig:
    """Small decoders of every kind."""
    split = draw(st.sampled_from(SUBSETS))
    heads = draw(st.integers(1, 4))
    head_width = draw(st.integers(1, 4))
    hidden = draw(st.integers(1, 24))
    return SmhtConfig(
        vocab_size=draw(st.integers(1, 40)),
        hidden_size=heads * head_width,
        num_hidden_layers=draw(st.integers(1, 3)),
        num_attention_heads=heads,
        intermediate_size=hidden * heads if "feed_forward" in split else hidden,
        max_position_embeddings=draw(st.integers(1, 12)),
        split=split,
        mixing=draw(st.sampled_from(["none", "shuffle"])) if split and heads > 1 and head_width > 1 else "none",
        norm_scope=draw(st.sampled_from(["model", "head"])) if head_width > 1 else "model",
        projection_bias=draw(st.booleans()),
        tie_word_embeddings=draw(st.booleans()),
    )


def eager_model(config: SmhtConfig) -> SmhtForCausalLM:
    config._attn_implementation = "eager"
    return SmhtForCausalLM(config).eval()


def check_against_model(config: SmhtConfig, context: int, batch: int, dtype: torch.dtype) -> None:
    model = eager_model(config).to(dtype)  # pyright: ignore[reportArgumentType]
    with torch.no_grad(), FlopCounterMode(display=False) as counter:
        outputs = model(torch.zeros(batch, context, dtype=torch.long))
    accounting = account(config, context, dtype)
    tokens = batch * context
    assert accounting.total.parameters == sum(parameter.numel() for parameter in model.parameters())
    assert accounting.total.multiply_adds * tokens * 2 == counter.get_total_flops()
    cache = [tensor for layer in outputs[CACHE_ARGUMENT].layers for tensor in (layer.keys, layer.values)]
    assert len(cache) == 2 * config.num_hidden_layers
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
        "token embedding": ["model.embed_tokens"],
        "position embedding": ["model.embed_positions"],
        "query, key, value": ["q_proj", "k_proj", "v_proj"],
        "attention output": ["o_proj"],
        "feed-forward": ["mlp"],
        "layer norms": ["input_layernorm", "post_attention_layernorm"],
        "final layer norm": ["model.norm"],
        "language-model head": ["lm_head"],
    }
    model = eager_model(config)
    tokens = config.max_position_embeddings
    with torch.no_grad(), FlopCounterMode(display=False) as counter:
        model(torch.zeros(1, tokens, dtype=torch.long))
    flops = {name.removeprefix("SmhtForCausalLM."): sum(by_op.values()) for name, by_op in counter.flop_counts.items()}
    accounting = account(config)
    # named_parameters leaves out the second name of a tied weight, as an accounting does.
    parameters = dict(model.named_parameters())
    for part, endings in modules.items():
        costs = accounting.part(part).costs
        owned = [
            weight.numel()
            for name, weight in parameters.items()
            if any(f".{ending}." in f".{name}" for ending in endings)
        ]
        multiplied = [count for name, count in flops.items() if any(name.endswith(ending) for ending in endings)]
        assert costs.parameters == sum(owned), part
        assert costs.multiply_adds * tokens * 2 == sum(multiplied), part
    attention = sum(count for name, count in flops.items() if name.endswith("self_attn"))
    projections = sum(accounting.part(name).costs.multiply_adds for name in ("query, key, value", "attention output"))
    scores = accounting.part("attention scores and mixing").costs
    assert scores.parameters == 0
    assert (scores.multiply_adds + projections) * tokens * 2 == attention


@given(config=configs(), data=st.data())
@settings(deadline=None, max_examples=20)
def test_causal_attention_leaves_out_the_masked_pairs(config: SmhtConfig, data: st.DataObject) -> None:
    context = data.draw(st.integers(1, config.max_position_embeddings))
    accounting = account(config, context)
    full = accounting.part("attention scores and mixing").costs.multiply_adds
    allowed = torch.ones(context, context).tril().sum().item()
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


def test_attention_weights_of_seed_002() -> None:
    config = SmhtConfig(
        vocab_size=8449,
        hidden_size=768,
        num_hidden_layers=12,
        num_attention_heads=12,
        max_position_embeddings=1024,
        split=(),
    )
    accounting = account(config)
    attention = accounting.part("query, key, value"), accounting.part("attention output")
    assert sum(part.each.parameters for part in attention) == 2_359_296
    assert sum(part.costs.parameters for part in attention) == 28_311_552
    assert round(accounting.total.parameters / 1e6, 1) == 98.7


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
