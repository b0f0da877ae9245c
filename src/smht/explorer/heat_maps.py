"""Matrices as heat maps: a table of numbers while they can be read, a picture of block averages beyond."""

import base64
import io
import math
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape

import torch
import torch.nn.functional as F
from torch import Tensor

from smht.explorer.colours import ABOVE, BELOW, Scale, scale_of
from smht.explorer.markup import scrolling, table, token

_MOST_NUMBERS = 400
_MOST_COLUMNS = 24
_MOST_CELLS = 128
_PICTURE = 512
_THUMBNAIL_CELLS = 56
_LARGEST_CELL = 20
_LETTER = 7
_LONGEST_LABEL = 14
_LINE = 13
_LEVELS = 40
"""Shades of each colour. More cannot be told apart, and would make files of noise larger."""


@dataclass(frozen=True)
class Axis:
    """One side of a matrix.

    Attributes:
        title: what it counts, such as `token`.
        names: of its places; empty where numbers will do.
        group: how many places belong together, as the channels of a head do; 0 for none.
    """

    title: str
    names: Sequence[str] = ()
    group: int = 0

    def name(self, place: int) -> str:
        """Of one place; within a group, its number there."""
        if self.names:
            return self.names[place]
        return str(place % self.group if self.group else place)


def heat_map(values: Tensor, rows: Axis, columns: Axis, caption: str, scale: Scale | None = None) -> str:
    """A matrix as a figure.

    Args:
        values: `[R, C]`; whole numbers, which have no colours, or others.
        rows: its rows.
        columns: its columns.
        caption: what it shows.
        scale: from zero to the furthest value, if not given.

    Returns:
        A table of up to 400 numbers; beyond that a picture of at most 128 × 128 cells, each the mean of a block.
    """
    scale = scale or scale_of(values)
    if values.numel() <= _MOST_NUMBERS and values.shape[1] <= _MOST_COLUMNS:
        return _numbers(values, rows, columns, caption, scale)
    values = values.float().cpu()
    return _picture(values, rows, columns, caption, scale)


def thumbnail(values: Tensor, title: str, scale: Scale) -> str:
    """A small picture with a line below.

    Args:
        values: `[R, C]`.
        title: the line, which a screen reader says too.
        scale: of its colours.
    """
    shown, _ = averaged(values.float().cpu(), _THUMBNAIL_CELLS)
    return (
        f'<figure class="thumbnail"><img alt="{escape(title)}" src="{_png(shown, scale)}">'
        f"<figcaption>{escape(title)}</figcaption></figure>"
    )


def averaged(values: Tensor, most: int = _MOST_CELLS) -> tuple[Tensor, tuple[int, int]]:
    """A matrix with at most `most` rows and columns, and the size of the blocks whose means they are."""
    block = (math.ceil(values.shape[0] / most), math.ceil(values.shape[1] / most))
    if block == (1, 1):
        return values, block
    pooled = F.avg_pool2d(values[None], block, ceil_mode=True, count_include_pad=False)
    return pooled[0], block


def _numbers(values: Tensor, rows: Axis, columns: Axis, caption: str, scale: Scale) -> str:
    names = f'<th scope="col">{escape(rows.title)}</th>' + _column_names(values.shape[1], columns)
    head = [names]
    if columns.group and not columns.names:
        groups = "".join(
            f'<th class="first" scope="colgroup" colspan="{columns.group}">{escape(columns.title)} {number}</th>'
            for number in range(values.shape[1] // columns.group)
        )
        head = [f"<td></td>{groups}", names]
    body = (
        f'<th scope="row">{token(rows.name(place))}</th>'
        + "".join(_cell(v, c, columns, scale) for c, v in enumerate(row))
        for place, row in enumerate(values.tolist())
    )
    return table(caption, head, body, "numbers")


def _column_names(count: int, columns: Axis) -> str:
    return "".join(
        f'<th scope="col"{_first(place, columns)}>{token(columns.name(place))}</th>' for place in range(count)
    )


def _cell(value: float, place: int, columns: Axis, scale: Scale) -> str:
    colour = scale.under_text(value) if isinstance(value, float) else ""
    style = f' style="{colour}"' if colour else ""
    return f"<td{_first(place, columns)}{style}>{number(value)}</td>"


def _first(place: int, columns: Axis) -> str:
    return ' class="first"' if columns.group and place % columns.group == 0 else ""


def number(value: float) -> str:
    """A value as all tables write it: whole numbers as they are, others with four places and a true minus sign."""
    if isinstance(value, int):
        return str(value)
    text = f"{value:.4f}" if abs(value) < 100_000 else f"{value:.4g}"
    return (text[1:] if text == "-0.0000" else text).replace("-", "−")


def _picture(values: Tensor, rows: Axis, columns: Axis, caption: str, scale: Scale) -> str:
    shown, block = averaged(values)
    side = max(2, min(_LARGEST_CELL, _PICTURE // max(shown.shape)))
    left_names = _ticks(rows, values.shape[0], block[0], side)
    top_names = _ticks(columns, values.shape[1], block[1], side)
    left = max([len(name) for _, name in left_names], default=0) * _LETTER + 8
    top = max([len(name) for _, name in top_names], default=0) * _LETTER + 8
    width, height = shown.shape[1] * side, shown.shape[0] * side
    means = "" if block == (1, 1) else f", means of {block[0]} × {block[1]}"
    colours = ", colours relative to each row's largest" if scale.by_row else ""
    title = f"{caption}: {rows.title} down, {columns.title} across{means}{colours}"
    middle = side / 2 + 4
    labels = "".join(
        f'<text x="{left - 4}" y="{top + place * side + middle:g}" text-anchor="end">{escape(name)}</text>'
        for place, name in left_names
    ) + "".join(
        f'<text transform="translate({left + place * side + middle:g} {top - 4}) rotate(-90)">{escape(name)}</text>'
        for place, name in top_names
    )
    svg = (
        f'<svg width="{left + width}" height="{top + height}" viewBox="0 0 {left + width} {top + height}" role="img" '
        f'aria-label="{escape(f"{title}. {_statistics(values)}")}">'
        f'<image x="{left}" y="{top}" width="{width}" height="{height}" preserveAspectRatio="none" '
        f'href="{_png(shown, scale)}"/>'
        f'<rect class="frame" x="{left}" y="{top}" width="{width}" height="{height}"/>{labels}</svg>'
    )
    note = f"<figcaption>{escape(title)}. {escape(_statistics(values))}</figcaption>"
    return f"<figure>{scrolling(caption, svg)}{note}</figure>"


def _statistics(values: Tensor) -> str:
    return f"From {number(float(values.min()))} to {number(float(values.max()))}, mean {number(float(values.mean()))}"


def _ticks(axis: Axis, count: int, block: int, side: int) -> list[tuple[int, str]]:
    """Cells with a name beside them: all where there is room; groups by their first; numbers where cells are means."""
    cells = math.ceil(count / block)
    step = max(1, math.ceil(_LINE / side))
    if axis.group and not axis.names:
        each = max(axis.group // block, 1)
        step = math.ceil(step / each) * each
        return [(cell, f"{axis.title} {cell * block // axis.group}") for cell in range(0, cells, step)]
    names = axis.names if block == 1 else ()
    return [(cell, _shortened(names[cell]) if names else str(cell * block)) for cell in range(0, cells, step)]


def _shortened(name: str) -> str:
    return name if len(name) <= _LONGEST_LABEL else name[: _LONGEST_LABEL - 1] + "…"


def _png(values: Tensor, scale: Scale) -> str:
    """A picture of one pixel a value as a data address: the stronger a colour, the less of the page shows through."""
    from PIL import Image

    pixels = ((scale.strength(values) + 1) * _LEVELS).round().to(torch.uint8)
    image = Image.fromarray(pixels.numpy()).convert("P")
    image.putpalette([*BELOW] * _LEVELS + [*ABOVE] * (_LEVELS + 1))
    opacity = bytes(round(255 * abs(level) / _LEVELS) for level in range(-_LEVELS, _LEVELS + 1))
    buffer = io.BytesIO()
    image.save(buffer, "PNG", optimize=True, transparency=opacity)
    return "data:image/png;base64," + base64.b64encode(buffer.getvalue()).decode()
