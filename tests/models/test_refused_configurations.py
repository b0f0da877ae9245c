"""Configurations that make no model: one line that says what is wrong."""

import math
from typing import Any

import pytest
from huggingface_hub.errors import StrictDataclassFieldValidationError

from smht import SmhtConfig
from smht.errors import UsageError

REFUSED: list[tuple[dict[str, Any], str]] = [
    (
        {"hidden_size": 10},
        "hidden_size = 10 is not a multiple of num_attention_heads = 4; the nearest are 8 and 12",
    ),
    (
        {"hidden_size": 10, "split": ()},
        "hidden_size = 10 is not a multiple of num_attention_heads = 4; the nearest are 8 and 12",
    ),
    (
        {"hidden_size": 3},
        "hidden_size = 3 is not a multiple of num_attention_heads = 4; the nearest is 4",
    ),
    (
        {"intermediate_size": 1022},
        "intermediate_size = 1022 is not a multiple of num_attention_heads = 4; the nearest are 1020 and 1024",
    ),
    *(
        ({name: size}, f"{name} = {size} must be at least 1")
        for name in (
            "vocab_size",
            "hidden_size",
            "num_hidden_layers",
            "num_attention_heads",
            "intermediate_size",
            "max_position_embeddings",
        )
        for size in (0, -4)
    ),
    ({"split": ("qvk",)}, "split names 'qvk', which is no projection: did you mean qkv?"),
    ({"split": ["qkv", "ffn"]}, "split names 'ffn', which is no projection: choose from feed_forward, output, qkv"),
    ({"hidden_act": "gleu"}, "hidden_act = 'gleu': did you mean gelu or silu or relu?"),
    ({"hidden_act": "tanh"}, "hidden_act = 'tanh': did you mean gelu_tanh?"),
    (
        {"mixing": "shuffle", "num_attention_heads": 1},
        "mixing = 'shuffle' would do nothing where there is one head; use mixing = 'none'",
    ),
    (
        {"mixing": "shuffle", "hidden_size": 4},
        "mixing = 'shuffle' would do nothing where each head is one channel wide; use mixing = 'none'",
    ),
    (
        {"mixing": "shuffle", "split": ()},
        "mixing = 'shuffle' would do nothing where no projection is split; use mixing = 'none'",
    ),
    (
        {"norm_scope": "head", "hidden_size": 4},
        "norm_scope = 'head' would make every output constant where each head is one channel wide; "
        "use norm_scope = 'model' or fewer heads",
    ),
    (
        {"position_embedding": "rotary", "hidden_size": 12},
        "position_embedding = 'rotary' turns channels in pairs, and a head is 3 channels wide; "
        "choose sizes that give an even head width",
    ),
    *(
        (
            {"num_decoder_layers": 2, "stack": stack},
            f"num_decoder_layers = 2 is for stack = 'encoder_decoder', and this is stack = {stack!r}: leave it out",
        )
        for stack in ("decoder", "encoder")
    ),
    (
        {"sparse_block_size": 8},
        "sparse_block_size = 8 is for attention_pattern = 'block_sparse', and this is attention_pattern = 'full': "
        "leave it out",
    ),
    *(
        ({name: size, **needed}, f"{name} = {size} must be at least 1")
        for name, needed in (
            ("num_decoder_layers", {"stack": "encoder_decoder"}),
            ("sparse_block_size", {"attention_pattern": "block_sparse"}),
        )
        for size in (0, -4)
    ),
    *(
        ({name: value}, f"{name} = {value} must be at least 0 and below 1")
        for name in ("hidden_dropout", "attention_dropout")
        for value in (-0.1, 1.0, 1, 2.5, math.nan)
    ),
    *(
        ({name: value}, f"{name} = {value} must be above 0 and finite")
        for name in ("layer_norm_eps", "initializer_range")
        for value in (0.0, -1e-5, math.nan, math.inf)
    ),
]


@pytest.mark.parametrize(("fields", "message"), REFUSED, ids=lambda value: str(value)[:60])
def test_refused_values(fields: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError) as refusal:
        SmhtConfig(**fields)
    assert str(refusal.value) == message


@pytest.mark.parametrize(
    "fields",
    [
        {"hidden_size": "256"},
        {"hidden_size": 256.0},
        {"num_hidden_layers": None},
        {"split": "qkv"},
        {"split": None},
        {"split": ("qkv", 3)},
        {"tie_word_embeddings": 1},
        {"projection_bias": "no"},
        {"hidden_act": None},
        {"stack": None},
        {"norm_placement": 1},
        {"position_embedding": None},
        {"num_decoder_layers": "2"},
        {"sparse_block_size": 4.0},
    ],
    ids=str,
)
def test_refused_types(fields: dict[str, Any]) -> None:
    (name,) = fields
    with pytest.raises(StrictDataclassFieldValidationError, match=f"'{name}'"):
        SmhtConfig(**fields)


@pytest.mark.parametrize(
    ("name", "value", "nearest"),
    [
        ("mixing", "shufle", "shuffle"),
        ("norm_scope", "heads", "head"),
        ("norm_placement", "prenorm", "pre"),
        ("hidden_act", "gellu", "gelu"),
        ("stack", "encodr", "encoder"),
        ("stack", "encoder-decoder", "encoder_decoder"),
        ("position_embedding", "rotery", "rotary"),
        ("position_embedding", "sinusoid", "sinusoidal"),
        ("attention_pattern", "sparse_block", "block_sparse"),
    ],
)
def test_refused_choices_name_the_nearest(name: str, value: str, nearest: str) -> None:
    with pytest.raises(UsageError, match=rf"^{name} = '{value}': did you mean {nearest}\b"):
        SmhtConfig(**{name: value})


@pytest.mark.parametrize(
    ("name", "nearest"),
    [
        ("hiden_size", "hidden_size"),
        ("num_hiddn_layers", "num_hidden_layers"),
        ("num_heads", "num_attention_heads"),
        ("splits", "split"),
        ("mixin", "mixing"),
        ("norm_scop", "norm_scope"),
        ("dropout", "hidden_dropout"),
        ("vocabulary_size", "vocab_size"),
        ("stacks", "stack"),
        ("decoder_layers", "num_decoder_layers"),
        ("norm_place", "norm_placement"),
        ("position_embeding", "position_embedding"),
        ("attention_patern", "attention_pattern"),
        ("block_size", "sparse_block_size"),
    ],
)
def test_a_misspelt_field_is_refused_with_the_nearest(name: str, nearest: str) -> None:
    with pytest.raises(UsageError, match=rf"^SmhtConfig has no field '{name}': did you mean .*\b{nearest}\b.*\?$"):
        SmhtConfig(**{name: 4})


def test_an_unknown_field_like_no_other_is_refused_with_all_of_them() -> None:
    with pytest.raises(UsageError, match=r"^SmhtConfig has no field 'zzz': choose from .*hidden_size.*vocab_size"):
        SmhtConfig(zzz=4)
