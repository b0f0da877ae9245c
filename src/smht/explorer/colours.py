"""Colours of values: blue above zero, orange below, the stronger the further from it; nothing at zero.

Both are Okabe and Ito's, told apart by colour-blind eyes. They are laid over the page's own background, so that one
scale serves light and dark.
"""

from dataclasses import dataclass

from torch import Tensor

ABOVE = (0, 114, 178)
BELOW = (213, 94, 0)
_TINY = 1e-12
_MOST_UNDER_TEXT = 55
"""Percent: letters stay readable on what is behind them."""


@dataclass(frozen=True)
class Scale:
    """Which value has the strongest colour.

    Attributes:
        limit: its distance from zero, above 0.
        by_row: whether a picture has the strongest colour at each row's own furthest value, however small that is.
    """

    limit: float
    by_row: bool = False

    def strength(self, values: Tensor) -> Tensor:
        """Of a picture's colours, `[R, C]`, from −1 to 1."""
        limit = values.abs().amax(-1, keepdim=True).clamp_min(_TINY) if self.by_row else self.limit
        return (values / limit).clamp(-1, 1).nan_to_num(0)

    def under_text(self, value: float) -> str:
        """A cell's background as CSS; empty near zero."""
        percent = round(_MOST_UNDER_TEXT * min(1.0, abs(value) / self.limit))
        if percent < 1:
            return ""
        red, green, blue = ABOVE if value > 0 else BELOW
        return f"background:rgb({red} {green} {blue}/{percent}%)"


def scale_of(values: Tensor) -> Scale:
    """From zero to what is furthest from it."""
    finite = values[values.isfinite()]
    limit = float(finite.abs().max()) if finite.numel() else 0.0
    return Scale(limit or 1.0)


PROBABILITIES = Scale(1.0)
"""The same colour for the same probability everywhere."""
WEIGHTS = Scale(1.0, by_row=True)
"""Of attention: numbers are coloured from 0 to 1; in pictures of long texts, where all are small, row by row."""
