import json

import pytest

from smht.inspection import compare
from smht.models import SmhtConfig, preset_config


def test_comparison_as_json() -> None:
    data = compare(preset_config("smht-mini")).to_dict()
    assert json.loads(json.dumps(data)) == data
    parts = {part["name"]: part for part in data["parts"]}
    assert parts["feed-forward"]["dense"]["parameters"] == 256
    assert parts["feed-forward"]["model"]["parameters"] == 64
    assert parts["feed-forward"]["ratio"] == {"parameters": 0.25, "multiply_adds": 0.25, "cache_values": None}
    assert parts["query, key, value"]["ratio"]["cache_values"] == 1.0
    assert data["total"]["ratio"]["parameters"] == pytest.approx(1904 / 2288)
    assert data["is_split"]


@pytest.mark.parametrize(
    ("head_width", "nearest"),
    [
        (2, "nearest: 16 (hidden_size = 64)"),
        (72, "nearest: 64 (hidden_size = 256) or 80 (hidden_size = 320)"),
        (15, "nearest: 16 (hidden_size = 64)"),
        (17, "nearest: 16 (hidden_size = 64) or 32 (hidden_size = 128)"),
    ],
)
def test_a_head_width_off_the_tile_is_noted_with_the_nearest(head_width: int, nearest: str) -> None:
    (note,) = compare(SmhtConfig(hidden_size=4 * head_width)).notes
    assert f"= {head_width}, is no multiple of 16" in note
    assert note.endswith(nearest)


@pytest.mark.parametrize("head_width", [16, 32, 64])
def test_a_head_width_on_the_tile_needs_no_note(head_width: int) -> None:
    assert compare(SmhtConfig(hidden_size=4 * head_width)).notes == ()


def test_a_dense_model_has_nothing_to_compare() -> None:
    comparison = compare(SmhtConfig(split=()))
    assert comparison.model == comparison.dense
    assert not comparison.is_split
    assert ["nothing to compare" in note for note in comparison.notes] == [True]


def test_one_head_makes_both_models_the_same() -> None:
    comparison = compare(SmhtConfig(num_attention_heads=1))
    assert comparison.model == comparison.dense
    assert ["both models are the same" in note for note in comparison.notes] == [True]
