"""Ranks that share every parameter compute what one process computes."""

from typing import Any

import pytest

from helpers import sharded as programs
from helpers.processes import Worlds
from smht.distributed.mesh import Mesh


@pytest.mark.parametrize(
    ("mesh", "steps", "changes"),
    [
        (Mesh(shard=2), 50, {"mixing": "shuffle", "tie_word_embeddings": True, "vocab_size": 24}),
        (Mesh(shard=2), 20, {"split": (), "position_embedding": "rotary", "vocab_size": 24}),
        (Mesh(data=2, shard=2), 50, {"split": ("qkv",), "projection_bias": True, "vocab_size": 24}),
    ],
    ids=["split", "dense", "replicas"],
)
def test_steps_are_those_of_one_process(world: Worlds, mesh: Mesh, steps: int, changes: dict[str, Any]) -> None:
    outcomes = world.run(mesh.size, programs.train_both, mesh, {"num_hidden_layers": 2, **changes}, steps)
    losses, norms = zip(*outcomes[0][0], strict=True)
    assert len(set(losses)) == steps
    for _, found, weight_error in outcomes:
        found_losses, found_norms = zip(*found, strict=True)
        assert found_losses == pytest.approx(losses, rel=1e-6)  # the loss is rounded to float32
        assert found_norms == pytest.approx(norms, rel=1e-7)
        assert weight_error < 1e-7


def test_sizes_that_the_ranks_do_not_divide(world: Worlds) -> None:
    changes = {"vocab_size": 23, "num_attention_heads": 3, "hidden_size": 9, "intermediate_size": 15}
    assert all(world.run(4, programs.round_trip, Mesh(shard=4), changes))


def test_generating_between_steps(world: Worlds) -> None:
    for expected, found, error in world.run(2, programs.generated, Mesh(shard=2)):
        assert found == expected
        assert error < 1e-6


@pytest.mark.parametrize("mesh", [Mesh(shard=2), Mesh(data=2, shard=2)], ids=["one", "replicas"])
def test_no_group_is_more_patient_than_all_ranks_together(world: Worlds, mesh: Mesh) -> None:
    for seconds in world.run(mesh.size, programs.patience_of_groups, mesh):
        assert len(seconds) == 1 and seconds != {1800.0}
