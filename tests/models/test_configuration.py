import json
import math
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from smht import PRESETS, SmhtConfig, preset_config
from smht.errors import UsageError
from smht.layers.block import NORM_PLACEMENTS, SPLITTABLE
from smht.layers.position import POSITION_ENCODINGS
from smht.models.configuration import ATTENTION_PATTERNS, STACKS
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
    assert (config.stack, config.norm_placement, config.position_embedding) == ("decoder", "pre", "learned")
    assert (config.attention_pattern, config.sparse_block_size) == ("full", None)
    assert (config.num_decoder_layers, config.decoder_start_token_id, config.is_encoder_decoder) == (None, None, False)


@st.composite
def architectures(draw: st.DrawFn) -> dict[str, Any]:
    heads, head_dim, factor = draw(st.integers(2, 5)), draw(st.integers(2, 9)), draw(st.integers(1, 4))
    split = draw(st.lists(st.sampled_from(SPLITTABLE), unique=True))
    positions = draw(st.integers(1, 4096))
    st.integers(1, min(99, positions))
    stack, pattern = draw(st.sampled_from(STACKS)), draw(st.sampled_from(ATTENTION_PATTERNS))
    encodings = [kind for kind in POSITION_ENCODINGS if kind != "rotary" or head_dim % 2 == 0]
    return {
        "vocab_size": draw(st.integers(1, 1000)),
        "hidden_size": heads * head_dim,
        "num_hidden_layers": draw(st.integers(1, 9)),
        "num_attention_heads": heads,
        "intermediate_size": draw(st.none() | st.just(heads * factor)),
        "max_position_embeddings": positions,
        "stack": stack,
        "num_decoder_layers": draw(st.none() | st.integers(1, 9)) if stack == "encoder_decoder" else None,
        "norm_placement": draw(st.sampled_from(NORM_PLACEMENTS)),
        "position_embedding": draw(st.sampled_from(encodings)),
        "attention_pattern": pattern,
        "sparse_block_size": draw(st.none() | st.integers(1, min(99, positions)))
        if pattern == "block_sparse"
        else None,
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
        "bos_token_id": draw(st.none() | st.integers(0, 9)),
        "pad_token_id": draw(st.none() | st.integers(0, 9)),
        "decoder_start_token_id": draw(st.none() | st.integers(0, 9)) if stack == "encoder_decoder" else None,
    }


def filled_in(fields: dict[str, Any]) -> dict[str, Any]:
    """What follows from other fields where it was not given."""
    following = {"intermediate_size": 4 * fields["hidden_size"]}
    if fields["stack"] == "encoder_decoder":
        following |= {"num_decoder_layers": fields["num_hidden_layers"]}
        following |= {"decoder_start_token_id": fields["bos_token_id"]}
    if fields["attention_pattern"] == "block_sparse":
        following |= {"sparse_block_size": round(math.sqrt(fields["max_position_embeddings"]))}
    return {name: following.get(name) if value is None else value for name, value in fields.items()}


@given(architectures())
def test_survives_json(fields: dict[str, Any]) -> None:
    config = SmhtConfig(**fields)
    again = SmhtConfig.from_dict(json.loads(config.to_json_string()))
    assert again.to_dict() == config.to_dict()
    assert again.is_encoder_decoder == (fields["stack"] == "encoder_decoder")
    for name, value in filled_in(fields).items():
        if name == "split":
            assert again.split == tuple(part for part in SPLITTABLE if part in value)
        else:
            assert getattr(again, name) == value, name


def test_survives_a_folder(tmp_path: Path) -> None:
    family = {"stack": "encoder_decoder", "attention_pattern": "block_sparse", "position_embedding": "rotary"}
    config = SmhtConfig(hidden_size=24, split=("output",), mixing="shuffle", tie_word_embeddings=True, **family)
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


@pytest.mark.parametrize(("context", "size"), [(1, 1), (2, 1), (3, 2), (256, 16), (300, 17), (512, 23), (4096, 64)])
def test_blocks_are_as_long_as_the_square_root_of_the_context(context: int, size: int) -> None:
    config = SmhtConfig(max_position_embeddings=context, attention_pattern="block_sparse")
    assert config.sparse_block_size == size
    # A field, so that a model does not change with the length of its input or with a longer context.
    assert SmhtConfig(**{**config.to_dict(), "max_position_embeddings": 9999}).sparse_block_size == size


def test_caches_for_the_decoder_have_its_blocks() -> None:
    config = SmhtConfig(stack="encoder_decoder", num_hidden_layers=2, num_decoder_layers=5)
    assert config.get_text_config(decoder=True).num_hidden_layers == 5
    assert config.get_text_config(encoder=True) is config and config.get_text_config() is config
    assert config.num_hidden_layers == 2
    single = SmhtConfig(num_hidden_layers=2)
    assert single.get_text_config(decoder=True) is single


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
