"""Accountings as tables for a terminal."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial

from rich import box
from rich.console import Console
from rich.measure import Measurement
from rich.table import Table

from smht.inspection.accounting import Accounting, Costs, Part
from smht.inspection.twin_comparison import Comparison

_ATTENTION = ("query, key, value", "attention scores and mixing", "attention output")
_MEMORY = tuple(f"memory: {name}" for name in _ATTENTION)
_BLOCK = (*_ATTENTION, *_MEMORY, "feed-forward")


@dataclass(frozen=True)
class _Row:
    """A line of the table: the sum of those parts that the model has."""

    label: str
    parts: tuple[str, ...]
    is_subtotal: bool = False


_QKV = _Row("Q, K, V", _ATTENTION[:1])
_SCORES = _Row("Scores, mixing", _ATTENTION[1:2])
_OUTPUT = _Row("W_O", _ATTENTION[2:])
_ATTENTION_SUM = _Row("Attention", _ATTENTION, is_subtotal=True)
_MEMORY_SUM = _Row("cross-attention", _MEMORY, is_subtotal=True)
_FEED_FORWARD = _Row("FFN", ("feed-forward",))
_BLOCK_SUM = _Row("blocks", _BLOCK, is_subtotal=True)
_NORMS = _Row("LayerNorm", ("layer norms", "final layer norm"))
_POSITIONS = _Row("Position embedding", ("position embedding",))

_PARAMETER_ROWS = (_QKV, _OUTPUT, _ATTENTION_SUM, _MEMORY_SUM, _FEED_FORWARD, _BLOCK_SUM, _NORMS, _POSITIONS)
_MULTIPLY_ADD_ROWS = (_QKV, _SCORES, _OUTPUT, _ATTENTION_SUM, _MEMORY_SUM, _FEED_FORWARD, _BLOCK_SUM)
_CACHE_ROWS = (_Row("Keys and values", (_ATTENTION[0], _MEMORY[0])),)
_TOKENS = _Row("Token embedding", ("token embedding",))
_HEAD = _Row("LM head", ("language-model head",))


def render_table(comparison: Comparison, title: str | None = None, width: int = 80) -> Table:
    """Seed 000's section 5: the model beside its dense twin, one block and the whole, for each kind of cost.

    Where no projection is split, twin and ratio are left out; where the table would be wider than `width`, the
    columns of one block. The notes are the table's caption.

    Args:
        comparison: what `smht.inspection.compare` returns.
        title: a line above the table.
        width: of the terminal, in characters.
    """
    table = _build(comparison, title, with_one_block=True)
    if Measurement.get(Console(width=10_000), Console(width=10_000).options, table).maximum > width:
        table = _build(comparison, title, with_one_block=False)
    return table


def _build(comparison: Comparison, title: str | None, with_one_block: bool) -> Table:
    table = Table(
        title=title,
        title_justify="left",
        caption=_caption(comparison),
        caption_justify="left",
        box=box.SIMPLE_HEAD,
        padding=(0, 1, 0, 0),
        pad_edge=False,
        show_edge=False,
    )
    table.add_column("")
    names = ("dense", "split") if comparison.is_split else ("dense",)
    for scope in ("one block", "whole model") if with_one_block else ("whole model",):
        for place, name in enumerate(names):
            table.add_column(f"{'' if place else scope}\n{name}", justify="right", overflow="fold")
    if comparison.is_split:
        table.add_column("split /\ndense", justify="right")
    item = comparison.model.dtype.itemsize
    add_section = partial(_add_section, table, comparison, with_one_block)
    add_section("Parameters", (*_PARAMETER_ROWS, _TOKENS, _HEAD), lambda costs: costs.parameters)
    add_section("Multiply-adds/token", (*_MULTIPLY_ADD_ROWS, _HEAD), lambda costs: costs.multiply_adds)
    if comparison.model.total.cache_values:
        add_section("Cache bytes/token", _CACHE_ROWS, lambda costs: costs.cache_values * item)
    return table


def _add_section(
    table: Table,
    comparison: Comparison,
    with_one_block: bool,
    heading: str,
    rows: tuple[_Row, ...],
    measure: Callable[[Costs], int],
) -> None:
    accountings = (comparison.dense, comparison.model) if comparison.is_split else (comparison.model,)
    table.add_row(heading, style="bold")
    for label, parts, is_subtotal in _lines(comparison.model, rows):
        costs = [_sum(accounting, parts) for accounting in accountings]
        block = [measure(block) for block, _ in costs] if with_one_block else []
        whole = [measure(whole) for _, whole in costs]
        if not any(whole) and parts[0].name not in _HEAD.parts:
            continue  # an encoder's cache, positions without parameters
        cells = _cells(block, whole)
        table.add_row(label, *cells, style="italic" if is_subtotal else "")
    totals = [measure(accounting.total) for accounting in accountings]
    table.add_row("Total", *_cells([0] * len(totals) if with_one_block else [], totals), style="bold", end_section=True)


def _lines(model: Accounting, rows: tuple[_Row, ...]) -> Iterator[tuple[str, list[Part], bool]]:
    """Each row that the model has parts for: its label, the parts, whether it is a subtotal. Stack by stack."""
    shared = {_TOKENS, _HEAD}
    prefixes = ("encoder: ", "decoder: ") if any(part.name.startswith("decoder: ") for part in model.parts) else ("",)
    names = {part.name: part for part in model.parts}
    for prefix in prefixes:
        for row in rows:
            parts = [names[prefix + name] for name in row.parts if row not in shared and prefix + name in names]
            if parts and not (row is _BLOCK_SUM and len(parts) == 1):
                yield f"{prefix.capitalize()}{_label(row, parts)}", parts, row.is_subtotal
    for row in rows:
        parts = [names[name] for name in row.parts if row in shared and name in names]
        if parts:
            yield _label(row, parts), parts, row.is_subtotal


def _sum(accounting: Accounting, parts: list[Part]) -> tuple[Costs, Costs]:
    """The parts of these names in one block, and in the whole model."""
    own = [accounting.part(part.name) for part in parts]
    block = sum((part.each for part in own if part.layers is not None), Costs())
    return block, sum((part.costs for part in own), Costs())


def _cells(block: list[int], whole: list[int]) -> list[str]:
    """Numbers as text: one block (empty outside the blocks), the whole model and, where there are two, their ratio."""
    cells = [f"{number:,}" if number else "" for number in block] + [f"{number:,}" for number in whole]
    if len(whole) == 2:
        dense, split = whole
        cells.append(f"{split / dense:.1%}" if dense else "")
    return cells


def _label(row: _Row, parts: list[Part]) -> str:
    if row is _BLOCK_SUM:
        return "1 block" if parts[0].layers == 1 else f"{parts[0].layers} blocks"
    if row is _HEAD and not parts[0].costs.parameters:
        return "LM head (tied)"
    return row.label


def _caption(comparison: Comparison) -> str:
    model = comparison.model
    dtype = str(model.dtype).removeprefix("torch.")
    pairs = "every pair of tokens in attention"
    if model.causal_attention is not None:
        pairs += f" ({model.causal_attention:,} for scores and mixing if masked pairs are skipped)"
    lines = [
        f"Multiply-adds: matrix products of a forward pass over {model.context:,} tokens, {pairs}. Cache in {dtype}.",
        *(f"Note: {note}." for note in comparison.notes),
    ]
    return "\n" + "\n".join(lines)
