"""Which channels go into which chunk, so that as much weight as possible lies inside of the blocks. Needs scipy.

A block-diagonal matrix keeps the weights between channels of the same chunk. Channels of the residual stream, inner
channels of feed-forwards and heads may be dealt to chunks anew; a dense model computes the same in any order. Dealing
one kind while the others stay where they are is a linear assignment problem, which is solved exactly, so going round
in turns never loses weight, and ends where no kind alone can gain. That need not be the best of all.

Letters: `D` residual channels, `H` chunks, `U` units (heads, or inner channels of a feed-forward).
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np

from smht.conversion.dealing import deal as deal_out

_MOST_TURNS = 100
_GAIN = 1e-9
"""Of the whole weight; less is rounding."""


@dataclass(frozen=True)
class Coupling:
    """The weights between the residual stream and one attention or feed-forward.

    Attributes:
        weight: `[U, D]`, squared weights between a unit and a residual channel, summed.
        owner: `[D]`, the chunk that has each place of the residual stream here.
        group: which units these are: those of one group are dealt alike.
    """

    weight: np.ndarray
    owner: np.ndarray
    group: str


@dataclass(frozen=True)
class Problem:
    """What is to be dealt.

    Attributes:
        couplings: all of a model.
        num_chunks: `H`.
        residual_is_fixed: whether residual channels have to stay in their places.
    """

    couplings: tuple[Coupling, ...]
    num_chunks: int
    residual_is_fixed: bool = False

    @property
    def total(self) -> float:
        """The whole weight."""
        return float(sum(coupling.weight.sum() for coupling in self.couplings))

    @property
    def units(self) -> dict[str, int]:
        """`U` by group."""
        return {coupling.group: len(coupling.weight) for coupling in self.couplings}

    @property
    def width(self) -> int:
        """`D`."""
        return self.couplings[0].weight.shape[1]


@dataclass(frozen=True)
class Deal:
    """An order of channels and units.

    Attributes:
        residual: `[D]`, the old channel at each place.
        units: by group `[U]`, the old unit at each place; chunk `h` has the `h`-th part of the places.
    """

    residual: np.ndarray
    units: dict[str, np.ndarray]

    @classmethod
    def identity(cls, problem: Problem) -> "Deal":
        """Everything where it is."""
        return cls(np.arange(problem.width), {group: np.arange(count) for group, count in problem.units.items()})

    def kept(self, problem: Problem) -> float:
        """The weight inside of the blocks."""
        return float(sum(self._kept(coupling, problem.num_chunks) for coupling in problem.couplings))

    def share(self, problem: Problem) -> float:
        """The part of the whole weight that is inside; 1 where there is no weight at all."""
        return self.kept(problem) / problem.total if problem.total else 1.0

    def _kept(self, coupling: Coupling, num_chunks: int) -> float:
        by_chunk = _chunk_weight(coupling.weight[self.units[coupling.group]], num_chunks)
        return by_chunk[coupling.owner, self.residual].sum()


def find_deal(problem: Problem, restarts: int = 2, seed: int = 0) -> Deal:
    """The best order found: turns from several beginnings, none worse than leaving everything where it is.

    Args:
        problem: what to deal.
        restarts: how many of the beginnings are random.
        seed: of those.

    Raises:
        UsageError: scipy is missing.
    """
    best = take_turns(problem, Deal.identity(problem))
    if problem.residual_is_fixed:
        return best
    for beginning in _beginnings(problem, restarts, seed):
        if best.kept(problem) >= (1 - _GAIN) * problem.total:
            break
        best = max(best, take_turns(problem, beginning), key=lambda deal: deal.kept(problem))
    return best


def take_turns(problem: Problem, deal: Deal) -> Deal:
    """Deal each kind in turn until nothing is gained."""
    kept = deal.kept(problem)
    for _ in range(_MOST_TURNS):
        for group in problem.units:
            deal = _deal_units(problem, deal, group)
        if not problem.residual_is_fixed:
            deal = _deal_residual(problem, deal)
        before, kept = kept, deal.kept(problem)
        if kept - before <= _GAIN * problem.total:
            break
    return deal


def _deal_residual(problem: Problem, deal: Deal) -> Deal:
    """The best residual channel for each place, all else as it is."""
    owners = np.stack([coupling.owner for coupling in problem.couplings])
    kinds, kind_of, sizes = np.unique(owners, axis=1, return_inverse=True, return_counts=True)
    gain = np.zeros((kinds.shape[1], problem.width))
    for coupling, owner in zip(problem.couplings, kinds, strict=True):
        gain += _chunk_weight(coupling.weight[deal.units[coupling.group]], problem.num_chunks)[owner]
    residual = np.empty(problem.width, int)
    residual[np.argsort(kind_of.reshape(-1), kind="stable")] = deal_out(gain, sizes)
    return Deal(residual, deal.units)


def _deal_units(problem: Problem, deal: Deal, group: str) -> Deal:
    """The best place for each unit of a group, all else as it is."""
    chunks = np.arange(problem.num_chunks)
    gain = np.zeros((problem.num_chunks, problem.units[group]))
    for coupling in problem.couplings:
        if coupling.group == group:
            owns = (chunks[:, None] == coupling.owner).astype(float)
            gain += owns @ coupling.weight[:, deal.residual].T
    sizes = np.full(problem.num_chunks, problem.units[group] // problem.num_chunks)
    return Deal(deal.residual, {**deal.units, group: deal_out(gain, sizes)})


def _beginnings(problem: Problem, restarts: int, seed: int) -> Iterator[Deal]:
    """Where turns begin: by the heads, whose channels belong together; at random."""
    identity = Deal.identity(problem)
    heads = tuple(c for c in problem.couplings if len(c.weight) == problem.num_chunks)
    for some in (heads, heads[:1]):
        if some:
            yield Deal(_deal_residual(replace(problem, couplings=some), identity).residual, identity.units)
    random = np.random.default_rng(seed)
    for _ in range(restarts):
        units = {group: random.permutation(count) for group, count in problem.units.items()}
        yield Deal(random.permutation(problem.width), units)


def _chunk_weight(weight: np.ndarray, num_chunks: int) -> np.ndarray:
    """`[U, D]` in order of places, summed over the units of each chunk: `[H, D]`."""
    return weight.reshape(num_chunks, -1, weight.shape[1]).sum(1)
