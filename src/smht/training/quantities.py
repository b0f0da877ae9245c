"""Times and sizes as people write and read them."""

import re
from decimal import Decimal

from smht.errors import UsageError

_NUMBER = r"(\d+(?:\.\d+)?)"
# A bare number is seconds only where it stands alone: 1h30 could be 30 minutes.
_DURATION = re.compile(rf"{_NUMBER}|(?:{_NUMBER}h)?(?:{_NUMBER}m)?(?:{_NUMBER}s)?")
_MULTIPLES = {"": 1, "k": 10**3, "K": 10**3, "M": 10**6, "G": 10**9, "B": 10**9, "T": 10**12}
_MOST = 10**24
_AMOUNT = re.compile(r"(\d+(?:\.\d+)?(?:[eE]\+?\d{1,3})?)([a-zA-Z]?)")


def parse_duration(text: str) -> float:
    """Seconds in `90`, `90s`, `2m`, `1h30m`.

    Raises:
        UsageError: not a duration above zero.
    """
    match = _DURATION.fullmatch(text.strip().lower().replace(" ", ""))
    bare, hours, minutes, seconds = match.groups() if match else (None,) * 4
    total = float(bare or 0) + 3600 * float(hours or 0) + 60 * float(minutes or 0) + float(seconds or 0)
    if total <= 0:
        raise UsageError(f"{text!r} is no duration: write it like 90s, 2m or 1h30m")
    return total


def parse_amount(text: str, what: str, example: str = "1.5M", least: int = 1) -> Decimal:
    """The number in `1500000`, `1.5M`, `3e12`.

    Args:
        text: what was typed.
        what: it is of, for the error.
        example: of how to write it.
        least: how much it has to be.

    Raises:
        UsageError: not a number from `least` to 10^24.
    """
    match = _AMOUNT.fullmatch(text)
    suffix = match[2] if match else ""
    if match is None or suffix not in _MULTIPLES:
        advice = f": {match[1]}M is millions" if match and suffix == "m" else ""
        raise UsageError(f"{what}={text} is no amount{advice}: write it like {example}")
    amount = Decimal(match[1]) * _MULTIPLES[suffix]
    if not least <= amount <= _MOST:
        raise UsageError(f"{what}={text} must be from {least} to {float(_MOST):.0e}")
    return amount


def format_duration(seconds: float) -> str:
    """Seconds for a person: `8 s`, `2 min 5 s`, `3 h 20 min`."""
    whole = max(0, round(seconds))
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60} s" if whole % 60 else f"{whole // 60} min"
    return f"{whole // 3600} h {whole % 3600 // 60} min"


def format_size(count: float) -> str:
    """Bytes for a person: `512 bytes`, `1.38 MB`."""
    if count < 1000:
        return f"{count:.0f} bytes"
    for unit in ("kB", "MB", "GB"):
        count /= 1000
        if count < 1000:
            return f"{count:.3g} {unit}"
    return f"{count / 1000:.3g} TB"
