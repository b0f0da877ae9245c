"""Numbers as horizontal bars, in a table that reads well without seeing them."""

from collections.abc import Sequence
from dataclasses import dataclass

from smht.explorer.markup import heading_cells, table, token, words


@dataclass(frozen=True)
class Bar:
    """One line.

    Attributes:
        name: of the line.
        value: how long its bar is; below zero it goes to the left.
        cells: the value, and what else to say, as text.
        is_total: whether it sums up the others; such a line has no bar.
    """

    name: str
    value: float
    cells: tuple[str, ...]
    is_total: bool = False


def bar_table(caption: str, headings: Sequence[str], bars: Sequence[Bar]) -> str:
    """Bars from a common zero, the longest as wide as there is room.

    Args:
        caption: what is shown.
        headings: of the names and of the cells.
        bars: the lines, in order.
    """
    drawn = [bar.value for bar in bars if not bar.is_total]
    low, high = min([0.0, *drawn]), max([0.0, *drawn])
    head = [heading_cells(headings) + '<td class="track"></td>']
    return table(caption, head, (_line(bar, low, (high - low) or 1.0) for bar in bars), "bars")


def _line(bar: Bar, low: float, length: float) -> str:
    cells = "".join(f"<td>{words(cell)}</td>" for cell in bar.cells)
    name = f'<th scope="row">{token(bar.name)}</th>'
    if bar.is_total:
        return f'{name}{cells}<td class="track"></td>'
    start = 100 * (min(0.0, bar.value) - low) / length
    kind = "below" if bar.value < 0 else "above"
    drawn = f'<span class="{kind}" style="margin-left:{start:.1f}%;width:{100 * abs(bar.value) / length:.1f}%"></span>'
    return f'{name}{cells}<td class="track" aria-hidden="true">{drawn}</td>'
