import json
import math
from pathlib import Path
from typing import Any

import pytest
from huggingface_hub.errors import StrictDataclassFieldValidationError
from hypothesis import given
from hypothesis import strategies as st

from smht import PRESETS, SmhtConfig, preset_config
from smht.errors import UsageError
from smht.layers.block import SPLITTABLE
from smht.ops.activation import ACTIVATIONS


def test_the_default_is_the_seeds_architecture() -> None:
    config = SmhtConfig()
    assert config.split == ("qkv", "output", "feed_forward")
    assert (config.mixing, config.norm_scope, config.hidden_act) == ("none", "model", "gelu")
    assert config.projection_bias is False
    assert config.tie_word_embeddings is False
    assert (config.hidden_dropout, config.attention_dropout, config.initializer_range) == (0.0, 0.0, None)
    assert config.intermediate_size == 4 * config.hidden_size
    assert config.head_dim * config.num_attention_heads == config.hidden_size
    assert config.layer_norm_eps == 1e-5


@st.composite
def architectures(draw: st.DrawFn) -> dict[str, Any]:
    heads, head_dim, factor = draw(st.integers(2, 5)), draw(st.integers(2, 9)), draw(st.integers(1, 4))
    split = draw(st.lists(st.sampled_from(SPLITTABLE), unique=True))
    return {
        "vocab_size": draw(st.integers(1, 1000)),
        "hidden_size": heads * head_dim,
        "num_hidden_layers": draw(st.integers(1, 9)),
        "num_attention_heads": heads,
        "intermediate_size": draw(st.none() | st.just(heads * factor)),
        "max_position_embeddings": draw(st.integers(1, 4096)),
        "split": split,
        "mixing": draw(st.sampled_from(["none", "shuffle"])) if split else "none",
        "norm_scope": draw(st.sampled_from(["model", "head"])),
        "projection_bias": draw(st.booleans()),
        "tie_word_embeddings": draw(st.booleans()),
        "hidden_act": draw(st.sampled_from(sorted(ACTIVATIONS))),
        "layer_norm_eps": draw(st.floats(1e-12, 1.0)),
        "hidden_dropout": draw(st.sampled_from([0, 0.0, 0.1, 0.999])),
        "attention_dropout": draw(st.sampled_from([0, 0.0, 0.1, 0.999])),
        "initializer_range": draw(st.none() | st.floats(1e-6, 1.0)),
        "pad_token_id": draw(st.none() | st.integers(0, 9)),
    }


@given(architectures())
def test_survives_json(fields: dict[str, Any]) -> None:
    config = SmhtConfig(**fields)
    again = SmhtConfig.from_dict(json.loads(config.to_json_string()))
    assert again.to_dict() == config.to_dict()
    for name, value in fields.items():
        if name == "split":
            assert again.split == tuple(part for part in SPLITTABLE if part in value)
        elif name == "intermediate_size" and value is None:
            assert again.intermediate_size == 4 * fields["hidden_size"]
        else:
            assert getattr(again, name) == value


def test_survives_a_folder(tmp_path: Path) -> None:
    config = SmhtConfig(hidden_size=24, split=("output",), mixing="shuffle", tie_word_embeddings=True)
    config.save_pretrained(tmp_path)
    again = SmhtConfig.from_pretrained(tmp_path)
    assert again.to_diff_dict() == config.to_diff_dict()
    assert again.split == ("output",)


@pytest.mark.parametrize(
    ("given_split", "kept"),
    [
        (["qkv"], ("qkv",)),
        (("feed_forward", "qkv"), ("qkv", "feed_forward")),
        (["output", "output", "qkv", "output"], ("qkv", "output")),
        (list(reversed(SPLITTABLE)), SPLITTABLE),
        ([], ()),
        ((), ()),
    ],
)
def test_split_has_one_spelling(given_split: Any, kept: tuple[str, ...]) -> None:
    assert SmhtConfig(split=given_split).split == kept


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
    ],
    ids=str,
)
def test_refused_types(fields: dict[str, Any]) -> None:
    (name,) = fields
    with pytest.raises(StrictDataclassFieldValidationError, match=f"'{name}'"):
        SmhtConfig(**fields)


@pytest.mark.parametrize(
    ("name", "value", "nearest"),
    [("mixing", "shufle", "shuffle"), ("norm_scope", "heads", "head"), ("hidden_act", "gellu", "gelu")],
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
    ],
)
def test_a_misspelt_field_is_refused_with_the_nearest(name: str, nearest: str) -> None:
    with pytest.raises(UsageError, match=rf"^SmhtConfig has no field '{name}': did you mean .*\b{nearest}\b.*\?$"):
        SmhtConfig(**{name: 4})


def test_an_unknown_field_like_no_other_is_refused_with_all_of_them() -> None:
    with pytest.raises(UsageError, match=r"^SmhtConfig has no field 'zzz': choose from .*hidden_size.*vocab_size"):
        SmhtConfig(zzz=4)


def written(folder: Path, **changes: Any) -> Path:
    """A folder with a config.json that another program wrote."""
    contents = SmhtConfig(hidden_size=8).to_dict() | changes
    (folder / "config.json").write_text(json.dumps(contents))
    return folder


# Fields that transformers 4 wrote, and made-up ones for the versions to come.
OF_OTHER_VERSIONS = {
    "transformers_version": "5.99.0",
    "torch_dtype": "float32",
    "torchscript": False,
    "use_bfloat16": False,
    "tf_legacy_loss": False,
    "sep_token_id": None,
    "decoder_start_token_id": None,
    "is_decoder": False,
    "tie_encoder_decoder": False,
    "add_cross_attention": False,
    "cross_attention_hidden_size": None,
    "pruned_heads": {},
    "max_length": 20,
    "num_beams": 1,
    "bad_words_ids": None,
    "task_specific_params": None,
    "hidden_activation": "gelu",
    "layer_types": None,
    "quantum_entanglement": 3,
}


def test_a_file_of_another_version_of_transformers_loads(tmp_path: Path) -> None:
    config = SmhtConfig.from_pretrained(written(tmp_path, **OF_OTHER_VERSIONS))
    assert config.hidden_size == 8
    assert config.split == SPLITTABLE


@pytest.mark.parametrize("name", ["hiden_size", "mixin", "num_attention_head", "splits"])
def test_a_misspelt_field_in_a_file_is_refused(tmp_path: Path, name: str) -> None:
    with pytest.raises(UsageError, match=f"^SmhtConfig has no field '{name}': did you mean "):
        SmhtConfig.from_pretrained(written(tmp_path, **{name: 4}))


def test_a_file_with_impossible_values_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"^hidden_size = 9 is not a multiple of num_attention_heads = 4"):
        SmhtConfig.from_pretrained(written(tmp_path, hidden_size=9))


def test_what_transformers_itself_passes_is_accepted() -> None:
    config = SmhtConfig(num_labels=3, attn_implementation="eager", output_attentions=True, name_or_path="here")
    assert config.num_labels == 3
    assert config._attn_implementation == "eager"


def test_fields_that_only_split_feed_forwards_need() -> None:
    assert SmhtConfig(intermediate_size=1022, split=("qkv", "output")).intermediate_size == 1022


@pytest.mark.parametrize("name", sorted(PRESETS))
def test_every_preset_is_an_architecture_and_can_be_changed(name: str) -> None:
    config = preset_config(name)
    for field, value in PRESETS[name].fields.items():
        assert getattr(config, field) == (tuple(value) if field == "split" else value)
    assert PRESETS[name].description
    assert preset_config(name, vocab_size=7).vocab_size == 7
    assert preset_config(name).vocab_size == config.vocab_size


def test_an_unknown_preset_is_refused_with_the_nearest() -> None:
    with pytest.raises(UsageError, match=r"^no preset is called 'smht-mni': did you mean smht-mini.*\?$"):
        preset_config("smht-mni")
