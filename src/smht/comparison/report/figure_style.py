"""How the report's pictures look. Needs matplotlib.

A variant has a colour, a line style and a marker of its own, so that pictures can be read without telling colours
apart.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from smht.comparison.report.numbers import write_short
from smht.errors import UsageError, first_line

INK = "#1f2429"
FAINT = "#9aa1a8"
COLOURS = ("#0072b2", "#d55e00", "#00795a", "#b0468c", "#8a6100", "#3d93c4", "#5c6166")
"""After Okabe and Ito's palette, darkened until each has three times the luminance contrast on white."""
_DASHES: tuple[Any, ...] = ("solid", (0, (5, 1.5)), (0, (1.5, 1.2)), (0, (6, 1.5, 1.5, 1.5)))
_MARKERS = ("o", "s", "^", "D", "v", "P", "X", "<", ">")
_SETTINGS = {
    "svg.fonttype": "none",
    "svg.hashsalt": "smht",
    "font.size": 10.5,
    "axes.edgecolor": FAINT,
    "axes.labelcolor": INK,
    "axes.facecolor": "none",
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.color": FAINT,
    "grid.alpha": 0.3,
    "grid.linewidth": 0.6,
    "legend.frameon": False,
    "text.color": INK,
    "text.parse_math": False,
    "xtick.color": FAINT,
    "ytick.color": FAINT,
    "xtick.labelcolor": INK,
    "ytick.labelcolor": INK,
}


@dataclass(frozen=True)
class LineStyle:
    """How a variant is drawn: arguments that `Axes.plot` takes."""

    color: str
    linestyle: Any
    marker: str

    @property
    def line(self) -> dict[str, Any]:
        """For a line without markers."""
        return {"color": self.color, "linestyle": self.linestyle, "linewidth": 1.8}

    @property
    def sample(self) -> dict[str, Any]:
        """For a line with markers."""
        return {**self.line, "marker": self.marker, "markersize": 6}


def line_style(place: int) -> LineStyle:
    """The style of the variant at a place; 28 differ in colour and line, more in the marker too."""
    return LineStyle(COLOURS[place % 7], _DASHES[place % 4], _MARKERS[place % 9])


def shorten(name: str, longest: int) -> str:
    """A name that leaves room for the picture."""
    return name if len(name) <= longest else name[: longest - 1] + "…"


def settings() -> Any:
    """A context in which figures are made and drawn.

    Raises:
        UsageError: matplotlib is missing.
    """
    try:
        import matplotlib
    except ImportError as error:
        raise UsageError(f"pictures need matplotlib ({first_line(error)}): pip install 'smht[compare]'") from None
    return matplotlib.rc_context(_SETTINGS)  # pyright: ignore[reportArgumentType]


def scale_x(panel: Any, values: Sequence[float], is_log: bool = False) -> None:
    """Few ticks in short numbers; a logarithmic axis, which takes values above zero only, has as many as fit."""
    from matplotlib.ticker import FuncFormatter, LogLocator, MaxNLocator, NullLocator

    ratio = max(values) / min(values) if is_log else 1.0
    if is_log:
        panel.set_xscale("log")
        panel.xaxis.set_minor_locator(NullLocator())
    if ratio > 1000:
        panel.xaxis.set_major_locator(LogLocator(numticks=5))
    elif ratio > 6:
        panel.xaxis.set_major_locator(LogLocator(subs=(1, 3)))
    else:
        panel.xaxis.set_major_locator(MaxNLocator(4))
    panel.xaxis.set_major_formatter(FuncFormatter(lambda value, _: write_short(value)))
