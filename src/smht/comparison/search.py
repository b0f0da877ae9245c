"""Which learning rates to try, and which of them a variant is trained with in the end.

Every variant gets as many trials as any other: a grid of factors of its own default rate, the same for all.
"""

from collections.abc import Iterable, Mapping, Sequence

SHARE = 0.2
"""Length of a trial of the search, as a part of a final training, if nothing else is asked for."""

_REACH = 1.5


def grid(count: int) -> tuple[float, ...]:
    """So many factors of the default rate, evenly spread over powers of two from 2^-1.5 to 2^1.5; 1 alone for one."""
    if count == 1:
        return (1.0,)
    return tuple(2 ** (_REACH * (2 * i / (count - 1) - 1)) for i in range(count))


def describe_share(share: float) -> str:
    """Length of a trial of the search, in words."""
    return {SHARE: "a fifth of the length", 1.0: "the whole length"}.get(share, f"{share:.3g} of the length")


def rate(base: float, factor: float) -> float:
    """The learning rate of a factor, in four digits, as it is shown and typed again."""
    return float(f"{base * factor:.4g}")


def best(losses: Mapping[float, float | None]) -> float | None:
    """The factor with the lowest loss; None where there is none, each of the trials having diverged or failed."""
    known = {factor: loss for factor, loss in losses.items() if loss is not None}
    return min(known, key=lambda factor: known[factor], default=None)


def extension(factors: Sequence[float], chosen: Iterable[float | None]) -> tuple[float, ...]:
    """Factors to try besides, by all variants: one beyond each end of the grid at which some variant did best."""
    if len(factors) < 2:
        return ()
    step = factors[1] / factors[0]
    at = set(chosen)
    below = (factors[0] / step,) if factors[0] in at else ()
    above = (factors[-1] * step,) if factors[-1] in at else ()
    return below + above


def explain_extension(factors: Sequence[float], factor: float, chosen: Mapping[str, float | None]) -> str:
    """A line about why all variants try a factor beyond the grid."""
    end, edge = ("lowest", factors[0]) if factor < factors[0] else ("highest", factors[-1])
    names = [name for name, best_factor in chosen.items() if best_factor == edge]
    return f"{' and '.join(names)} did best at the {end} rate tried: all variants try one more beyond it"


def remarks(tried: Sequence[float], chosen: Mapping[str, float | None]) -> list[str]:
    """Lines about variants without a best rate, or with one that may not be the best.

    Args:
        tried: all factors, in rising order.
        chosen: the best of them, by variant.
    """
    lines = []
    for name, factor in chosen.items():
        if factor is None:
            lines.append(f"{name}: every rate diverged or failed, so there is no final training of it")
        elif len(tried) > 1 and factor in (tried[0], tried[-1]):
            end = "lowest" if factor == tried[0] else "highest"
            lines.append(f"{name} did best at the {end} of all rates tried: its best rate may lie beyond")
    return lines
