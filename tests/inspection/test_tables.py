import io
import re

import pytest
from rich.console import Console

from smht.inspection import account, compare, tables
from smht.inspection.tables import render_table
from smht.models import SmhtConfig, preset_config


def as_text(config: SmhtConfig, width: int = 80) -> str:
    file = io.StringIO()
    Console(file=file, width=width).print(render_table(compare(config), title="a title", width=width))
    return file.getvalue()


def rows(text: str) -> dict[str, list[list[str]]]:
    """The numbers of each row by its label, one list for each section that has such a row."""
    found: dict[str, list[list[str]]] = {}
    for line in text.splitlines():
        label, *cells = re.split(r"\s{2,}", line.strip())
        found.setdefault(label, []).append(cells)
    return found


def test_rows_of_section_5() -> None:
    found = rows(as_text(preset_config("smht-mini")))
    expected = {
        "Q, K, V": ["192", "48", "192", "48", "25.0%"],
        "W_O": ["64", "16", "64", "16", "25.0%"],
        "FFN": ["256", "64", "256", "64", "25.0%"],
        "1 block": ["512", "128", "512", "128", "25.0%"],
        "LayerNorm": ["32", "32", "48", "48", "100.0%"],
        "Token embedding": ["800", "800", "100.0%"],
        "Position embedding": ["128", "128", "100.0%"],
        "LM head": ["800", "800", "100.0%"],
        "Total": ["2,288", "1,904", "83.2%"],
    }
    assert {label: found[label][0] for label in expected} == expected


def test_rows_of_seed_002() -> None:
    config = SmhtConfig(
        vocab_size=8449,
        hidden_size=768,
        num_hidden_layers=12,
        num_attention_heads=12,
        max_position_embeddings=1024,
        split=(),
    )
    found = rows(as_text(config))
    assert found["Attention"][0] == ["2,359,296", "28,311,552"]
    assert found["Total"][0] == ["98,737,152"]


def test_a_tied_head_is_named_so() -> None:
    found = rows(as_text(preset_config("smht-mini", tie_word_embeddings=True)))
    assert found["LM head (tied)"] == [["0", "0"], ["800", "800", "100.0%"]]


@pytest.mark.parametrize("width", [80, 120])
@pytest.mark.parametrize(("hidden_size", "layers"), [(8, 1), (1536, 16), (8192, 80)])
def test_no_number_is_broken_and_columns_line_up(width: int, hidden_size: int, layers: int) -> None:
    config = SmhtConfig(
        vocab_size=128_000,
        hidden_size=hidden_size,
        num_hidden_layers=layers,
        max_position_embeddings=131_072,
        num_attention_heads=4,
    )
    text = as_text(config, width)
    table = text[text.index("─") : text.index("Multiply-adds:")].splitlines()[1:]
    assert all(len(line.rstrip()) <= width for line in text.splitlines())
    percent = {line.rstrip().rindex("%") for line in table if line.rstrip().endswith("%")}
    assert len(percent) == 1
    assert f"{compare(config).dense.total.multiply_adds:,}" in text
    assert f"{compare(config).model.total.parameters:,}" in text


def test_notes_and_context_stand_below() -> None:
    text = " ".join(as_text(preset_config("smht-mini")).split())
    assert "over 16 tokens" in text
    assert "Cache in float32." in text
    assert "Note: the head width, 8 / 4 = 2, is no multiple of 16" in text


def test_every_part_with_a_cost_has_a_row() -> None:
    sections = {
        "parameters": tables._PARAMETER_ROWS,
        "multiply_adds": tables._MULTIPLY_ADD_ROWS,
        "cache_values": tables._CACHE_ROWS,
    }
    accounting = account(SmhtConfig())
    for measure, section in sections.items():
        shown = [name for row in section if not row.is_subtotal for name in row.parts]
        assert sum(getattr(accounting.part(name).costs, measure) for name in shown) == getattr(
            accounting.total, measure
        )
