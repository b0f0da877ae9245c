"""Which sizes of one architecture come near a budget, and which of them are best.

For a given width `D` the real costs (`smht.inspection.accounting`) are linear in the feed-forward width `F`, so that
two of them tell the `F` that fills the budget.
"""

import copy
import math
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

from smht.comparison.budget import Limit
from smht.inspection.accounting import account
from smht.models import SmhtConfig

MET = 0.01
"""Part of a budget by which a model that meets it may miss it."""

_CLOSE = 0.0025
# `F / D` as a part of the base architecture's: 3 to 5, or 1 to 16, where that is 4.
_PREFERRED, _POSSIBLE = (0.75, 1.25), (0.25, 4.0)
# Channels that a vector register holds; kernels and matrix libraries do best with multiples of it.
_LANES = 16
_MOST_WIDTHS = 128


@dataclass(frozen=True)
class Fit:
    """One choice of sizes.

    Attributes:
        depth: number of blocks `N`.
        width: `D`.
        hidden: `F`.
        channels: of a head, and of a block of the feed-forward.
        cost: what the model has of the budget's kind.
        error: part of the budget by which the cost misses it.
        excess: how far `F / D` is out of the preferred range, and `strangeness` how far from the base's, as logarithms.
        slimness: how far `D / N` is from the base's, as a logarithm; 0 where the depth is given.
    """

    depth: int
    width: int
    hidden: int
    channels: tuple[int, int]
    cost: int
    error: float
    excess: float
    strangeness: float
    slimness: float

    @property
    def rank(self) -> tuple[float, ...]:
        """Compares choices, the best lowest.

        To meet the budget comes first, then a usual `F / D`, then the base's `D / N` where the depth is to choose.
        Among those close to the budget, numbers of channels that kernels compute well go before others, which would
        slow one variant down and not another. The rest is for the base's `F / D`.
        """
        misfits = [_LANES // math.gcd(channels, _LANES) for channels in self.channels]
        missed = self.error if self.error > MET else 0.0
        return missed, self.excess, self.slimness, max(self.error, _CLOSE), *misfits, self.strangeness, self.error


class Family:
    """The models of one architecture and depth, in all sizes.

    Args:
        config: the architecture; its `F / D` is aimed at.
        budget: what they should cost: parameters or multiplications.
        depth: number of blocks; the configuration's own if not given, and if given, its `D / N` is aimed at.
    """

    def __init__(self, config: SmhtConfig, budget: Limit, depth: int | None = None) -> None:
        self._scratch = copy.deepcopy(config)
        self._scratch.num_hidden_layers = depth or config.num_hidden_layers
        self._slimness = config.hidden_size / config.num_hidden_layers if depth else None
        self._budget = budget
        self._ratio = ratio_of(config)
        self._heads, self._blocks = config.num_attention_heads, hidden_unit(config.split, config.num_attention_heads)
        self._unit = width_unit(self._heads, config.position_embedding)
        # A head of one channel would have nothing to shuffle, and a norm would make a constant of it.
        needs_two = config.mixing == "shuffle" or config.norm_scope == "head"
        self._least = 2 if needs_two and self._unit == self._heads else 1

    def best(self) -> Fit:
        """The best choice, whether it meets the budget or not."""
        best = min(self._fits(*_PREFERRED), key=lambda fit: fit.rank)
        if best.error <= MET and not best.excess:
            return best
        return min([best, *self._fits(*_POSSIBLE)], key=lambda fit: fit.rank)

    def _fits(self, lowest: float, highest: float) -> Iterator[Fit]:
        """For widths whose `F / D` lies between these parts of the base's, or just outside."""
        for width in self._widths(lowest, highest):
            first = self._cost(width, self._blocks)
            each = self._cost(width, 2 * self._blocks) - first
            wanted = 1 + (self._budget.amount - first) / each
            base = self._ratio * width / self._blocks
            least, most = max(1, math.ceil(lowest * base)), max(1, math.floor(highest * base))
            rounded = {round(wanted / multiple) * multiple for multiple in (1, 2, 4, 8, _LANES)}
            for count in sorted({min(max(count, least), most) for count in rounded}):
                yield self._fit(width, count * self._blocks, first + (count - 1) * each)

    def _fit(self, width: int, hidden: int, cost: int) -> Fit:
        relative = hidden / width / self._ratio
        depth = self._scratch.num_hidden_layers
        return Fit(
            depth,
            width,
            hidden,
            channels=(width // self._heads, hidden // self._blocks),
            cost=cost,
            error=abs(cost - self._budget.amount) / self._budget.amount,
            excess=max(0.0, math.log(_PREFERRED[0] / relative), math.log(relative / _PREFERRED[1])),
            strangeness=abs(math.log(relative)),
            slimness=abs(math.log(width / depth / self._slimness)) if self._slimness else 0.0,
        )

    def _widths(self, lowest: float, highest: float) -> range:
        """At most about `_MOST_WIDTHS` widths that meet the budget with an `F / D` between, and one on either side.

        Where there are more, they are multiples of a power of two.
        """
        first = max(self._least, self._multiple(highest, bisect_left) - 1)
        last = max(first, self._multiple(lowest, bisect_right))
        step = 1
        while (last - first) // step > _MOST_WIDTHS:
            step *= 2
        first = -(-first // step) * step
        return range(first * self._unit, last * self._unit + 1, step * self._unit)

    def _multiple(self, part: float, bisect: Callable[..., int]) -> int:
        """Where the budget stands among the multiples of the least width, with `F / D` this part of the base's."""

        def cost(multiple: int) -> int:
            width = multiple * self._unit
            return self._cost(width, max(1, round(part * self._ratio * width / self._blocks)) * self._blocks)

        end = 2
        while cost(end) <= self._budget.amount:
            end *= 2
        return bisect(range(1, end), self._budget.amount, key=cost) + 1

    def _cost(self, width: int, hidden: int) -> int:
        # Not a new configuration each time: to make and check one takes ten times as long as to count.
        self._scratch.hidden_size, self._scratch.intermediate_size = width, hidden
        return cost_of(self._scratch, self._budget.kind)


def cost_of(config: SmhtConfig, kind: str) -> int:
    """What a model has of a size budget's kind."""
    total = account(config).total
    return {"parameters": total.parameters, "multiplications": total.multiply_adds, "width": config.hidden_size}[kind]


def ratio_of(config: SmhtConfig) -> float:
    """`F / D`."""
    assert config.intermediate_size is not None
    return config.intermediate_size / config.hidden_size


def width_unit(heads: int, position_embedding: str) -> int:
    """What the width is a multiple of; rotary positions turn the channels of a head in pairs."""
    return 2 * heads if position_embedding == "rotary" else heads


def hidden_unit(split: Iterable[str], heads: int) -> int:
    """What the feed-forward width is a multiple of."""
    return heads if "feed_forward" in split else 1
