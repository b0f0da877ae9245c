"""Small tables of results: as text for a terminal, as HTML for a notebook."""

from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from io import StringIO
from typing import Any

from rich import box
from rich.console import Console, Group
from rich.table import Table as RichTable
from rich.text import Text

_WIDTH = 120


@dataclass(frozen=True, repr=False)
class Table:
    """Cells that are text already.

    Attributes:
        headers: of the columns; those of numbers are on the right.
        rows: a cell a column.
        caption: above the table.
        note: below it.
        words: which columns hold words, not numbers; the first one if not given.
    """

    headers: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    caption: str = ""
    note: str = ""
    words: tuple[int, ...] = (0,)

    def to_rich(self) -> Group:
        """For a terminal. Nothing in the cells is markup."""
        table = RichTable(box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False, padding=(0, 1, 0, 0))
        for place, header in enumerate(self.headers):
            table.add_column(Text(header), justify="left" if place in self.words else "right")
        for row in self.rows:
            table.add_row(*map(Text, row))
        return Group(*(part for part in (Text(self.caption), table, Text(self.note)) if part))

    def __repr__(self) -> str:
        """Lines of text, at most 120 characters wide."""
        stream = StringIO()
        Console(file=stream, width=_WIDTH, color_system=None, force_jupyter=False).print(self.to_rich())
        return "\n".join(line.rstrip() for line in stream.getvalue().splitlines())

    def _repr_html_(self) -> str:
        caption = f"<caption>{escape(self.caption)}</caption>" if self.caption else ""
        head = "".join(f'<th scope="col">{escape(header)}</th>' for header in self.headers)
        body = "".join(f"<tr>{''.join(self._cell(*cell) for cell in enumerate(row))}</tr>" for row in self.rows)
        note = f"<p>{escape(self.note)}</p>" if self.note else ""
        return f"<table>{caption}<thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>{note}"

    def _cell(self, place: int, text: str) -> str:
        side = "left" if place in self.words else "right"
        return f'<td style="text-align: {side}; white-space: pre-wrap">{escape(text)}</td>'


class Displayed:
    """A result that shows itself as tables: printed, and as the last line of a notebook's cell.

    Dataclasses of this kind are made with `repr=False`, or their own text would come first.
    """

    def tables(self) -> Sequence[Table]:
        """What there is to see."""
        raise NotImplementedError

    def __repr__(self) -> str:
        return "\n\n".join(map(str, self.tables()))

    def _repr_html_(self) -> str:
        return "".join(table._repr_html_() for table in self.tables())


def visible(token: str) -> str:
    """A token on one line, its white space and control characters to be seen."""
    shown = token.replace("\n", "⏎").replace("\t", "⇥").replace(" ", "␣")
    return "".join(letter if letter.isprintable() else f"U+{ord(letter):04X}" for letter in shown)


def signed(value: float) -> str:
    """A change with its sign, to four places."""
    return f"{value:+.4f}"


def matrix_rows(matrix: Any, form: str = "{:.4f}") -> tuple[tuple[str, ...], ...]:
    """Rows of a table from `[rows, columns]`, each after its number."""
    return tuple((str(number), *(form.format(value) for value in row)) for number, row in enumerate(matrix.tolist()))
