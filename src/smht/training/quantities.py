"""Times and sizes as people write and read them."""

import re

from smht.errors import UsageError

_NUMBER = r"(\d+(?:\.\d+)?)"
# A bare number is seconds only where it stands alone: 1h30 could be 30 minutes.
_DURATION = re.compile(rf"{_NUMBER}|(?:{_NUMBER}h)?(?:{_NUMBER}m)?(?:{_NUMBER}s)?")


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
