"""Pictures as SVG: files of their own, and elements of a page.

Colours are drawn as of a white page; in a page they become CSS variables, which follow the reader's theme.
"""

import io
import re
import warnings
from collections.abc import Callable, Mapping
from html import escape
from typing import Any

from smht.comparison.report.document import Figure, LegendEntry
from smht.comparison.report.figure_style import COLOURS, FAINT, INK, LineStyle, settings, shorten

_SIZE = (4.4, 3.2)
"""Inches. As wide as a telephone, so that letters stay readable there."""
_SAMPLE_SIZE = (0.55, 0.2)
_LEGEND_COLUMNS = 2
_LEGEND_ROW = 0.23


def draw_figure(
    name: str,
    title: str,
    description: str,
    draw: Callable[[Any], None],
    legend: Mapping[str, LineStyle],
    height: float = _SIZE[1],
) -> Figure:
    """Make a picture of one panel.

    Args:
        name: of its file.
        title: what it shows.
        description: the same for those who cannot see it.
        draw: draws into a matplotlib panel.
        legend: styles by name, for the file; a page has the legend beside its pictures.
        height: in inches.

    Raises:
        UsageError: matplotlib is missing.
    """
    with settings(), warnings.catch_warnings():
        # Odd numbers and letters that a font lacks make odd pictures; the tables beside them say what is the case.
        warnings.simplefilter("ignore")
        bare = to_svg(_panel(draw, _SIZE[0], height))
        rows = -(-len(legend) // _LEGEND_COLUMNS)
        whole = _panel(draw, _SIZE[0] * 1.4, height + rows * _LEGEND_ROW + 0.3)
        whole.suptitle(title, fontsize="medium")
        if legend:
            labels = [" " + shorten(label, 36) for label in legend]
            whole.legend(_handles(legend), labels, loc="outside lower center", ncols=_LEGEND_COLUMNS, fontsize="small")
        file = to_svg(whole, background="white")
    return Figure(name, title, description, inline(bare, name, title, description), file)


def draw_legend(name: str, legend: Mapping[str, LineStyle]) -> tuple[LegendEntry, ...]:
    """Samples of line and marker.

    Args:
        name: that no other legend of the page has.
        legend: styles by name.

    Raises:
        UsageError: matplotlib is missing.
    """
    entries = []
    with settings():
        from matplotlib.figure import Figure as Canvas

        for place, (label, handle) in enumerate(zip(legend, _handles(legend), strict=True)):
            figure = Canvas(figsize=_SAMPLE_SIZE)
            handle.set_data([0.1, 0.5, 0.9], [0.5, 0.5, 0.5])
            handle.set_markevery([1])
            figure.add_artist(handle)
            entries.append(LegendEntry(inline(to_svg(figure), f"{name}-{place}"), label))
    return tuple(entries)


def to_svg(figure: Any, background: str = "none") -> bytes:
    """A figure as an SVG file, the same bytes for the same figure."""
    buffer = io.BytesIO()
    figure.savefig(buffer, format="svg", facecolor=background, metadata={"Date": None})
    return buffer.getvalue()


def inline(svg: bytes, name: str, title: str = "", description: str = "") -> str:
    """An SVG file as an element of a page: no addresses, ids of its own, the page's colours, words for screen readers.

    Args:
        svg: as `to_svg` makes it.
        name: that no other picture of the page has.
        title: what it shows; without one it is decoration.
        description: the same for those who cannot see it.
    """
    text = svg.decode()
    text = re.sub(r"<metadata>.*?</metadata>|<style.*?</style>", "", text[text.index("<svg") :], flags=re.DOTALL)
    opening, content = text.split(">", 1)
    content = content.replace("xlink:href", "href")
    used = set(re.findall(r'(?:href="#|url\(#)([^")]*)', content))
    content = re.sub(r' id="([^"]*)"', lambda match: match[0] if match[1] in used else "", content)
    content = re.sub(r'(\bid="|\bhref="#|url\(#)', rf"\g<1>{name}-", content)
    for place, colour in enumerate(COLOURS):
        content = content.replace(colour, f"var(--series-{place})")
    content = content.replace(INK, "var(--ink)").replace(FAINT, "var(--faint)")
    box = re.search(r'viewBox="[^"]*"', opening)
    return f"<svg {box.group() if box else ''} {_words(name, title, description)}{content.strip()}"


def _panel(draw: Callable[[Any], None], width: float, height: float) -> Any:
    from matplotlib.figure import Figure as Canvas

    canvas = Canvas(figsize=(width, height), layout="constrained")
    draw(canvas.subplots())
    return canvas


def _handles(legend: Mapping[str, LineStyle]) -> list[Any]:
    from matplotlib.lines import Line2D

    return [Line2D([], [], **style.sample) for style in legend.values()]


def _words(name: str, title: str, description: str) -> str:
    if not title:
        return 'aria-hidden="true">'
    ids = f"{name}-title {name}-description"
    return (
        f'role="img" aria-labelledby="{ids}"><title id="{name}-title">{escape(title)}</title>'
        f'<desc id="{name}-description">{escape(description)}</desc>'
    )
