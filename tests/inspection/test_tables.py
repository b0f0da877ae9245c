import io
import re

import pytest
from rich.console import Console

from smht.inspection import account, compare, tables
from smht.inspection.tables import render_table
from smht.models import SmhtConfig, preset_config
from smht.models.configuration import STACKS


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


@pytest.mark.parametrize("stack", STACKS)
def test_every_part_with_a_cost_has_a_row(stack: str) -> None:
    sections = {
        "parameters": (*tables._PARAMETER_ROWS, tables._TOKENS, tables._HEAD),
        "multiply_adds": (*tables._MULTIPLY_ADD_ROWS, tables._HEAD),
        "cache_values": tables._CACHE_ROWS,
    }
    accounting = account(SmhtConfig(stack=stack))
    for measure, section in sections.items():
        # Of attention to a memory the table has the sum alone.
        rows = [row for row in section if not row.is_subtotal or row is tables._MEMORY_SUM]
        shown = [part for _, parts, _ in tables._lines(accounting, tuple(rows)) for part in parts]
        assert sum(getattr(part.costs, measure) for part in shown) == getattr(accounting.total, measure)


def test_an_encoder_decoder_has_the_rows_of_both_stacks() -> None:
    text = as_text(SmhtConfig(stack="encoder_decoder", num_decoder_layers=3))
    for label in ("Encoder: 4 blocks", "Decoder: 3 blocks", "Decoder: cross-attention", "Encoder: Position embedding"):
        assert label in text, text
    assert "Encoder: cross-attention" not in text
    assert "Encoder: Keys and values" not in text


def test_an_encoder_has_neither_head_nor_cache() -> None:
    text = as_text(SmhtConfig(stack="encoder"))
    assert "LM head" not in text
    assert "Cache bytes" not in text
    assert "masked pairs" not in text
