"""Numbers as the report writes them."""

import math

from smht.comparison.statistics import Interval

NOTHING = "–"
_MOST_PLACES = 6


def write_interval(interval: Interval | None, signed: bool = False) -> str:
    """`1.7159 ± 0.0047`, or the mean alone where there is no interval; two digits of the half-width count."""
    if interval is None:
        return NOTHING
    mean = write_number(interval.mean, interval.half_width, signed)
    return mean if interval.half_width is None else f"{mean} ± {write_width(interval.half_width)}"


def write_number(value: float | None, width: float | None = None, signed: bool = False) -> str:
    """A number to as many places as its half-width has two digits in, four where there is none.

    Args:
        value: None is written as a dash.
        width: half that of its interval.
        signed: whether a plus sign is written.
    """
    if value is None or not math.isfinite(value):
        return NOTHING
    largest = max(abs(value), width or 0.0)
    text = write_power(abs(value)) if largest >= 1e6 or 0 < largest < 1e-4 else f"{abs(value):.{_places(width)}f}"
    is_zero = not text.strip("0.")
    sign = "" if is_zero else "−" if value < 0 else "+" if signed else ""
    return sign + text


def write_width(width: float) -> str:
    """Half the width of an interval, two digits."""
    if width >= 1e6 or 0 < width < 10**-_MOST_PLACES:
        return write_power(width, digits=2)
    return f"{width:.{_places(width)}f}"


def write_count(value: float | None) -> str:
    """`812,345`; from a thousand million on `3.01e12`."""
    if value is None or not math.isfinite(value):
        return NOTHING
    return f"{value:,.0f}" if abs(value) < 1e9 else write_power(value)


def write_power(value: float | None, digits: int = 3) -> str:
    """As short as can be with a power of ten: `3e-3`, `2.83e-3`, `3.01e12`."""
    if value is None or not math.isfinite(value):
        return NOTHING
    factor, exponent = f"{value:.{digits - 1}e}".split("e")
    return f"{factor.rstrip('0').rstrip('.') if '.' in factor else factor}e{int(exponent)}"


def write_short(value: float | None) -> str:
    """For axes and rates: `1.5M`, `3e-3`, `0.05`, `20`, `2e12`."""
    if value is None or not math.isfinite(value):
        return NOTHING
    size = abs(value)
    if size == 0:
        return "0"
    if size >= 1e9 or 0 < size < 1e-2:
        return write_power(value)
    factor, prefix = (1e6, "M") if size >= 1e6 else (1e3, "k") if size >= 1e4 else (1, "")
    return f"{value / factor:.4g}{prefix}"


def write_seconds(value: float | None) -> str:
    """Measured seconds: `155`, `12.5`, `0.031`."""
    if value is None or not math.isfinite(value):
        return NOTHING
    if value >= 1e9:
        return write_power(value)
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def write_p(value: float | None) -> str:
    """A p-value: `0.012`, `< 0.0001`."""
    if value is None:
        return NOTHING
    return "< 0.0001" if value < 1e-4 else f"{value:.3g}"


def write_share(value: float) -> str:
    """A part as percent: `−0.4%`; what is below a thousandth of a percent is 0."""
    return f"{100 * value:.2g}%".replace("-", "−", 1) if abs(value) >= 1e-5 else "0%"


def _places(width: float | None) -> int:
    """Decimal places that show two digits of a half-width."""
    if not width:
        return 4
    return min(_MOST_PLACES, max(0, 1 - math.floor(math.log10(width))))
