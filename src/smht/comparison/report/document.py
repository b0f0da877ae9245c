"""A report's contents, apart from how they are written: as Markdown, as a page, or in a terminal."""

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Cell:
    """A table's cell.

    Attributes:
        text: plain.
        is_marked: whether it stands out, such as the best of a row.
    """

    text: str
    is_marked: bool = False


@dataclass(frozen=True)
class Table:
    """Rows of texts; the first column names the row.

    Attributes:
        title: what it shows.
        headers: one a column.
        rows: each as long as `headers`.
        text_columns: those besides the first that hold words rather than numbers.
        note: under the table.
    """

    title: str
    headers: tuple[str, ...]
    rows: Sequence[Sequence[str | Cell]]
    text_columns: frozenset[int] = frozenset()
    note: str = ""

    def cells(self) -> list[list[Cell]]:
        """The rows with every cell a `Cell`."""
        return [[cell if isinstance(cell, Cell) else Cell(cell) for cell in row] for row in self.rows]


@dataclass(frozen=True)
class Figure:
    """A picture.

    Attributes:
        name: of its file, without suffix.
        title: what it shows.
        description: the same for those who cannot see it, with the figures that matter.
        svg: without a legend, to be put into a page.
        file: whole, for a program that shows pictures.
    """

    name: str
    title: str
    description: str
    svg: str
    file: bytes


@dataclass(frozen=True)
class Gallery:
    """Pictures of the same variants side by side.

    Attributes:
        legend: a line's sample and a name for each variant.
        figures: the pictures.
    """

    legend: tuple["LegendEntry", ...]
    figures: tuple[Figure, ...]


@dataclass(frozen=True)
class LegendEntry:
    """A variant's sample of line and marker, as SVG, and its name."""

    svg: str
    name: str


@dataclass(frozen=True)
class Paragraph:
    """A plain text."""

    text: str


@dataclass(frozen=True)
class Bullets:
    """Plain texts, one a point."""

    items: tuple[str, ...]


@dataclass(frozen=True)
class Findings:
    """What the report came to, one a point; marked where it tells something."""

    items: tuple[Cell, ...]


@dataclass(frozen=True)
class Code:
    """What can be copied into a terminal."""

    text: str


Block = Paragraph | Bullets | Findings | Code | Table | Gallery


@dataclass(frozen=True)
class Section:
    """A heading and what stands under it."""

    heading: str
    blocks: tuple[Block, ...]


@dataclass(frozen=True)
class Document:
    """A whole report.

    Attributes:
        title: over all.
        lead: one line under the title.
        sections: in order.
    """

    title: str
    lead: str
    sections: tuple[Section, ...]
