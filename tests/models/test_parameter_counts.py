"""Seed 000, section 5: the closed forms against the models' own parameters."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from smht import SmhtConfig, SmhtForCausalLM, preset_config


def count(*modules: nn.Module) -> int:
    return sum(parameter.numel() for module in modules for parameter in module.parameters())


def counted(model: SmhtForCausalLM) -> dict[str, int]:
    """Parameters by the rows of the seed's list."""
    blocks = list(model.model.layers)
    attentions, mlps = [block.self_attn for block in blocks], [block.mlp for block in blocks]
    norms = [norm for block in blocks for norm in (block.input_layernorm, block.post_attention_layernorm)]
    return {
        "qkv": sum(count(attention.q_proj, attention.k_proj, attention.v_proj) for attention in attentions),
        "output": sum(count(attention.o_proj) for attention in attentions),
        "feed_forward": count(*mlps),
        "norms": count(*norms, model.model.norm),
        "token embedding": count(model.model.embed_tokens),
        "position embedding": count(model.model.embed_positions),
        "head": count(model.lm_head),
    }


@pytest.mark.parametrize(
    ("split", "qkv", "output", "feed_forward"),
    [
        (("qkv", "output", "feed_forward"), 48, 16, 64),
        ((), 192, 64, 256),
    ],
)
def test_the_numbers_that_the_seed_prints(split: tuple[str, ...], qkv: int, output: int, feed_forward: int) -> None:
    model = SmhtForCausalLM(preset_config("smht-mini", split=split))
    assert counted(model) == {
        "qkv": qkv,
        "output": output,
        "feed_forward": feed_forward,
        "norms": 48,
        "token embedding": 800,
        "position embedding": 128,
        "head": 800,
    }
    block = qkv + output + feed_forward
    assert block == (128 if split else 512)
    assert count(model) == 800 + 128 + block + 48 + 800


def test_the_mini_model_has_1904_parameters() -> None:
    model = SmhtForCausalLM(preset_config("smht-mini"))
    assert count(model) == model.num_parameters() == 1904


@given(
    heads=st.integers(1, 4),
    head_dim=st.integers(1, 5),
    head_width=st.integers(1, 6),
    layers=st.integers(1, 3),
    vocabulary=st.integers(1, 40),
    positions=st.integers(1, 20),
    split=st.sets(st.sampled_from(["qkv", "output", "feed_forward"])),
    bias=st.booleans(),
    tied=st.booleans(),
)
def test_closed_forms(
    heads: int,
    head_dim: int,
    head_width: int,
    layers: int,
    vocabulary: int,
    positions: int,
    split: set[str],
    bias: bool,
    tied: bool,
) -> None:
    width, hidden_width = heads * head_dim, heads * head_width
    model = SmhtForCausalLM(
        SmhtConfig(
            vocab_size=vocabulary,
            hidden_size=width,
            num_hidden_layers=layers,
            num_attention_heads=heads,
            intermediate_size=hidden_width,
            max_position_embeddings=positions,
            split=sorted(split),
            projection_bias=bias,
            tie_word_embeddings=tied,
        )
    )
    input_width = {name: head_dim if name in split else width for name in ("qkv", "output")}
    ff_input = head_width if "feed_forward" in split else hidden_width
    expected = {
        "qkv": layers * (3 * width * input_width["qkv"] + (3 * width if bias else 0)),
        "output": layers * (width * input_width["output"] + (width if bias else 0)),
        "feed_forward": layers * (2 * width * ff_input + (hidden_width + width if bias else 0)),
        "norms": (2 * layers + 1) * 2 * width,
        "token embedding": vocabulary * width,
        "position embedding": positions * width,
        "head": vocabulary * width,
    }
    assert counted(model) == expected
    # Tied, the head is the token embedding and counts once.
    assert count(model) == sum(expected.values()) - (expected["head"] if tied else 0)


@pytest.mark.parametrize("mixing", ["none", "shuffle"])
@pytest.mark.parametrize("norm_scope", ["model", "head"])
def test_options_that_cost_no_parameters(mixing: str, norm_scope: str) -> None:
    changed = preset_config("smht-mini", mixing=mixing, norm_scope=norm_scope, num_hidden_layers=3)
    plain = preset_config("smht-mini", num_hidden_layers=3)
    assert count(SmhtForCausalLM(changed)) == count(SmhtForCausalLM(plain))
    assert SmhtForCausalLM(changed).state_dict().keys() == SmhtForCausalLM(plain).state_dict().keys()
