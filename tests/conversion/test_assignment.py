import itertools
from collections.abc import Iterator

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from smht.conversion.assignment import Coupling, Deal, Problem, find_deal, take_turns
from smht.layers.mixing import shuffle_order


def owners(width: int, chunks: int, power: int) -> np.ndarray:
    owner = np.empty(width, int)
    owner[shuffle_order(width, chunks, power).numpy()] = np.arange(width) // (width // chunks)
    return owner


def random_problem(seed: int, width: int, chunks: int, units: list[int], powers: list[int]) -> Problem:
    random = np.random.default_rng(seed)
    couplings = (
        Coupling(random.random((count, width)) ** 4, owners(width, chunks, power), str(i))
        for i, (count, power) in enumerate(zip(units, powers, strict=True))
    )
    return Problem(tuple(couplings), chunks)


def every_deal(problem: Problem) -> Iterator[Deal]:
    """Every order of everything; those that differ within chunks alone included."""
    orders = [itertools.permutations(range(count)) for count in problem.units.values()]
    for residual, *units in itertools.product(itertools.permutations(range(problem.width)), *orders):
        named = {group: np.array(order) for group, order in zip(problem.units, units, strict=True)}
        yield Deal(np.array(residual), named)


@pytest.mark.parametrize("seed", range(8))
@pytest.mark.parametrize(
    ("units", "powers"), [([2], [0]), ([4], [0]), ([2, 4], [0, 0]), ([2, 2], [0, 1]), ([4, 2], [1, 0])]
)
def test_no_order_of_a_tiny_case_keeps_more(seed: int, units: list[int], powers: list[int]) -> None:
    problem = random_problem(seed, 4, 2, units, powers)
    most = max(deal.kept(problem) for deal in every_deal(problem))
    assert find_deal(problem, restarts=8).kept(problem) == pytest.approx(most)


@given(st.integers(0, 2**32 - 1), st.integers(2, 4), st.integers(1, 4), st.booleans())
def test_never_less_than_before(seed: int, chunks: int, channels: int, shuffled: bool) -> None:
    width = chunks * channels
    problem = random_problem(seed, width, chunks, [chunks, 2 * chunks], [0, int(shuffled)])
    random = np.random.default_rng(seed)
    before = Deal(random.permutation(width), {g: random.permutation(n) for g, n in problem.units.items()})
    assert take_turns(problem, before).kept(problem) >= before.kept(problem) * (1 - 1e-12)
    found = find_deal(problem)
    assert found.kept(problem) >= Deal.identity(problem).kept(problem) * (1 - 1e-12)
    assert sorted(found.residual) == list(range(width))
    assert 0 <= found.share(problem) <= 1 + 1e-12


def test_a_fixed_residual_stays() -> None:
    problem = random_problem(0, 8, 2, [2, 8], [0, 0])
    fixed = Problem(problem.couplings, 2, residual_is_fixed=True)
    found = find_deal(fixed)
    assert found.residual.tolist() == list(range(8))
    assert Deal.identity(fixed).kept(fixed) < found.kept(fixed) <= find_deal(problem).kept(problem)


def test_groups_are_dealt_alike() -> None:
    random = np.random.default_rng(0)
    couplings = tuple(Coupling(random.random((3, 6)), owners(6, 3, 0), "heads") for _ in range(2))
    problem = Problem(couplings, 3)
    assert list(find_deal(problem).units) == ["heads"]


def test_no_weight_at_all() -> None:
    problem = Problem((Coupling(np.zeros((2, 4)), owners(4, 2, 0), "a"),), 2)
    assert find_deal(problem).share(problem) == 1.0
