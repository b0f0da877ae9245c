"""Attention weights as pictures, readable from two tokens to hundreds. Needs matplotlib."""

import base64
import importlib.util
import math
import warnings
from collections.abc import Sequence
from functools import partial
from html import escape
from io import BytesIO
from pathlib import Path
from typing import Any

import torch.nn.functional as F
from torch import Tensor

from smht.errors import UsageError
from smht.inspection.display import visible

_MOST_LABELS = 64
_MOST_CELLS = 128
_LONGEST_LABEL = 12
_SCALE = "weight (colours by its square root)"


def draw_map(weights: Tensor, queries: Sequence[str], keys: Sequence[str], title: str) -> Any:
    """One head: queries down, keys across, each with its token where there is room.

    Args:
        weights: `[T, S]`.
        queries: `T` tokens.
        keys: `S` tokens.
        title: above the picture.

    Returns:
        A matplotlib figure. Longer texts than 128 tokens are averaged in blocks, which the title says.
    """
    shown, block = _averaged(weights)
    side = min(14.0, max(3.5, 0.24 * max(shown.shape) + 2))
    figure = _new_figure(side)
    panel = figure.subplots()
    image = _draw_weights(panel, shown)
    figure.colorbar(image, ax=panel, shrink=0.7, label=_SCALE)
    panel.set_title(_of_title(title) + (f" (means of {block} × {block} tokens)" if block > 1 else ""), wrap=True)
    for axis, tokens in ((panel.yaxis, queries), (panel.xaxis, keys)):
        _label(axis, tokens, block)
    panel.tick_params(axis="x", rotation=90)
    panel.set_ylabel("query")
    panel.set_xlabel("key")
    return figure


def draw_grid(weights: Tensor, title: str) -> Any:
    """All heads of all layers, small: a row a layer, a column a head.

    Args:
        weights: `[N, H, T, S]`.
        title: above the picture.

    Returns:
        A matplotlib figure.
    """
    layers, heads = weights.shape[:2]
    cell = min(2.2, 24 / max(layers, heads))
    figure = _new_figure(cell * heads + 1, cell * layers + 1)
    panels = figure.subplots(layers, heads, squeeze=False)
    image: Any = None
    for layer in range(layers):
        for head in range(heads):
            panel = panels[layer][head]
            shown, _ = _averaged(weights[layer, head])
            image = _draw_weights(panel, shown)
            panel.set_xticks([])
            panel.set_yticks([])
            if layer == 0:
                panel.set_title(f"head {head}", fontsize=8)
            if head == 0:
                panel.set_ylabel(f"layer {layer}", fontsize=8)
    figure.colorbar(image, ax=panels, shrink=0.6, label=_SCALE)
    figure.suptitle(_of_title(title), wrap=True)
    figure.supxlabel("key →", fontsize=8)
    figure.supylabel("← query", fontsize=8)
    return figure


def can_draw() -> bool:
    """Whether matplotlib is installed."""
    return importlib.util.find_spec("matplotlib") is not None


def picture(figure: Any, description: str) -> str:
    """A figure as an element of a page, with a description for who does not see it."""
    data = base64.b64encode(_png(figure, dpi=80)).decode()
    return f'<img alt="{escape(description)}" src="data:image/png;base64,{data}">'


def check_picture(path: Path) -> None:
    """Refuse a file that no figure can be written to.

    Raises:
        UsageError: a suffix other than `.png`, `.svg` and `.pdf`, or a folder that is not there.
    """
    if path.suffix.lower() not in (".png", ".svg", ".pdf"):
        raise UsageError(f"{path}: name a .png, .svg or .pdf file")
    if not path.absolute().parent.is_dir():
        raise UsageError(f"{path}: there is no folder {path.absolute().parent}")


def save_figure(figure: Any, path: Path) -> None:
    """Write a figure as its suffix says: the whole of it or nothing.

    Raises:
        UsageError: see `check_picture`.
    """
    check_picture(path)
    stream = BytesIO()
    _write(figure, stream, dpi=150, format=path.suffix[1:].lower())
    try:
        path.write_bytes(stream.getvalue())
    except OSError:
        path.unlink(missing_ok=True)
        raise


def _write(figure: Any, target: Any, dpi: int, **options: Any) -> None:
    with warnings.catch_warnings():
        # A letter that the font lacks is drawn as a box, which says enough.
        warnings.filterwarnings("ignore", "Glyph .* missing")
        figure.savefig(target, dpi=dpi, **options)


def _png(figure: Any, dpi: int = 100) -> bytes:
    stream = BytesIO()
    _write(figure, stream, dpi, format="png")
    return stream.getvalue()


def _new_figure(width: float, height: float | None = None) -> Any:
    try:
        from matplotlib.figure import Figure
    except ImportError:
        raise UsageError("pictures need matplotlib: pip install 'smht[train]'") from None
    figure = Figure(figsize=(width, height or width), layout="constrained")
    # Only figures that pyplot knows show themselves in a notebook, and those stay in memory until closed.
    figure._repr_png_ = partial(_png, figure)  # pyright: ignore[reportAttributeAccessIssue]
    return figure


def _draw_weights(panel: Any, weights: Tensor) -> Any:
    """One scale for all pictures, so that they can be compared; by its root, or long texts would be white."""
    from matplotlib.colors import PowerNorm

    return panel.imshow(weights.numpy(), cmap="Blues", norm=PowerNorm(0.5, vmin=0, vmax=1), aspect="auto")


def _averaged(weights: Tensor) -> tuple[Tensor, int]:
    """Weights with at most 128 rows and columns, and how many tokens each of them stands for."""
    block = math.ceil(max(weights.shape) / _MOST_CELLS)
    if block == 1:
        return weights.float().cpu(), 1
    pooled = F.avg_pool2d(weights.float()[None], block, ceil_mode=True, count_include_pad=False)
    return pooled[0].cpu(), block


def _label(axis: Any, tokens: Sequence[str], block: int) -> None:
    """Tokens as tick labels: every one, or as many as fit; positions where blocks are shown."""
    count = math.ceil(len(tokens) / block)
    step = math.ceil(count / _MOST_LABELS)
    places = range(0, count, step)
    names = [_shortened(tokens[place]) if block == 1 else str(place * block) for place in places]
    axis.set_ticks(list(places), names)


def _shortened(token: str) -> str:
    """A token as a label: white space visible, `$` no formula, long ones cut."""
    shown = visible(token)
    return _no_formula(shown if len(shown) <= _LONGEST_LABEL else shown[: _LONGEST_LABEL - 1] + "…")


def _of_title(text: str) -> str:
    """A title, whose control characters a picture cannot hold."""
    return _no_formula("".join(letter if letter.isprintable() else "�" for letter in text))


def _no_formula(text: str) -> str:
    """For matplotlib, which reads what stands between dollars as TeX."""
    return text.replace("$", r"\$")
