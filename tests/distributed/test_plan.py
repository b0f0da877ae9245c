"""What `smht plan` computes beside what the counter measures."""

from typing import Any

import pytest

from helpers import plans as programs
from helpers.head_parallel import tiny_config
from helpers.processes import Worlds
from smht.inspection.plan import Link, Way, plan

BATCH, TOKENS = 4, 12
CHANGES: dict[str, dict[str, Any]] = {
    "plain": {},
    "shuffled": {"mixing": "shuffle"},
    "a norm a head": {"mixing": "shuffle", "norm_scope": "head"},
    "norms after the sums": {"norm_placement": "post", "vocab_size": 70},
    "tied": {"tie_word_embeddings": True},
    "tied, many tokens of few": {"tie_word_embeddings": True, "vocab_size": 60},
}


def ways(ranks: int, changes: dict[str, Any]) -> dict[str, Way]:
    """The plan of a tiny model, by name."""
    found = plan(tiny_config(**changes), ranks, BATCH, TOKENS, Link(1e6, 1e-3, 1e9))
    return {way.name: way for way in found}


@pytest.mark.parametrize("ranks", [2, 4])
@pytest.mark.parametrize("name", CHANGES)
def test_head_parallel_traffic_is_as_planned(world: Worlds, ranks: int, name: str) -> None:
    check(world, ranks, "head", CHANGES[name])


@pytest.mark.parametrize("ranks", [2, 4])
@pytest.mark.parametrize("way", ["data", "sharded", "megatron"])
def test_traffic_of_other_ways_is_as_planned(world: Worlds, ranks: int, way: str) -> None:
    # Sizes that the ranks divide: FSDP fills up what they do not.
    check(world, ranks, way, {"vocab_size": 24, "mixing": "shuffle"})


def check(world: Worlds, ranks: int, way: str, changes: dict[str, Any]) -> None:
    planned = ways(ranks, changes)[way]
    measured = world.run(ranks, programs.of_a_step, way, changes, BATCH, TOKENS)
    assert planned.bytes == pytest.approx(max(sent for sent, _ in measured), rel=1e-12)
    assert {messages for _, messages in measured} == {planned.messages}
    assert max(world.run(ranks, programs.held, way, changes)) == planned.parameters
    # A ring's rounds, and bytes one after the other.
    waiting = planned.rounds * 1e-3 + planned.bytes / 1e6
    assert planned.step_seconds == pytest.approx(planned.compute_seconds + waiting)
