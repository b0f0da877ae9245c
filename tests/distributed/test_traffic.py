"""What the counter says beside what was counted by hand."""

import json
from typing import Any

import pytest

from helpers import forks
from helpers import traffic as programs
from helpers.benchmarks import FOLDER
from helpers.processes import Worlds

TOKENS, CHANNELS, BLOCKS, WORDS = 30, 32, 3, 23
"""Of `programs.of_a_step`."""


@pytest.mark.parametrize("ranks", [2, 4])
def test_each_collective(world: Worlds, ranks: int) -> None:
    size, ring = 96, (ranks - 1) / ranks
    for rank, collectives in enumerate(world.run(ranks, programs.one_of_each)):
        found = [(collective.kind, collective.bytes) for collective in collectives]
        assert found == [
            ("all-reduce", 2 * size * ring),
            ("all-gather", size * (ranks - 1)),
            ("all-gather", size * (ranks - 1)),
            ("reduce-scatter", size * ring),
            ("all-to-all", size * ring),
            ("all-to-all", 0 if rank == 0 else size),
            ("broadcast", size * ring),
            ("gather", size * (ranks - 1)),
            ("all-reduce", 2 * size * ring),
            ("all-gather", size * (ranks - 1)),
            ("reduce-scatter", size * ring),
            ("all-to-all", size * ring),
            ("all-reduce", 2 * size * ring),
        ]


@pytest.mark.parametrize("ranks", [2, 4])
def test_norms_send_two_numbers_a_token(world: Worlds, ranks: int) -> None:
    norms, pair = 2 * BLOCKS + 1, TOKENS * 2 * 4
    for forward, backward in world.run(ranks, programs.of_a_step, {"vocab_size": WORDS}):
        # The head sums partial logits, since there are fewer tokens than channels; then three numbers a token.
        padded = -(-WORDS // ranks) * ranks
        logits = TOKENS * padded * 4 * (ranks - 1) / ranks
        loss = TOKENS * 3 * 4 * (ranks - 1)
        assert forward == {
            "all-gather": (norms * pair * (ranks - 1) + loss, norms + 1),
            "reduce-scatter": (logits, 1),
        }
        assert backward == {
            "all-reduce": (norms * 2 * pair * (ranks - 1) / ranks, norms),
            "all-gather": (logits, 1),
        }


@pytest.mark.parametrize("ranks", [2, 4])
def test_with_a_norm_a_head_nothing_crosses_before_the_language_model_head(world: Worlds, ranks: int) -> None:
    changes = {"norm_scope": "head", "vocab_size": 2 * CHANNELS, "norm_placement": "pre"}
    hidden = TOKENS * CHANNELS * 4 * (ranks - 1) / ranks
    for forward, backward in world.run(ranks, programs.of_a_step, changes):
        assert forward == {"all-gather": (hidden + TOKENS * 3 * 4 * (ranks - 1), 2)}
        assert backward == {"reduce-scatter": (hidden, 1)}


@pytest.mark.parametrize("ranks", [2, 4])
def test_shuffle_sends_the_channels_that_change_hands(world: Worlds, ranks: int) -> None:
    plain = world.run(ranks, programs.of_a_step, {})
    shuffled = world.run(ranks, programs.of_a_step, {"mixing": "shuffle"})
    for (forward, backward), (plain_forward, _) in zip(shuffled, plain, strict=True):
        assert {kind: forward[kind] for kind in plain_forward} == plain_forward
        # There and back, in two sub-layers, in all blocks but the first; each rank has 32 / P channels.
        sent, messages = forward["all-to-all"]
        assert messages == 4 * (BLOCKS - 1)
        assert 0 < sent <= messages * TOKENS * CHANNELS / ranks * 4
        assert backward["all-to-all"] == forward["all-to-all"]


def test_a_collective_that_is_not_known_is_not_left_out(world: Worlds) -> None:
    with pytest.raises(AssertionError, match=r"NotImplementedError: Traffic does not know what c10d::reduce_ sends"):
        world.run(2, programs.of_something_unknown)


@pytest.mark.slow
def test_benchmark_at_a_tiny_size() -> None:
    sizes = ["--ranks", "2", "--hidden-size", "64", "--heads", "4", "--layers", "2", "--tokens", "5"]
    code, told, errors = forks.run(FOLDER / "traffic.py", *sizes, "--json", timeout=120)
    assert code == 0, errors
    figures: list[dict[str, Any]] = json.loads(told)
    values = {figure["name"]: figure["value"] for figure in figures}
    vector, pair = 5 * 64 * 4, 5 * 2 * 4
    # An all-reduce between two ranks sends as much as the vector is long; two a block, forward and backward each.
    assert values["2 ranks, tensor parallel, dense: forward"] == 2 * vector
    assert values["2 ranks, tensor parallel, dense: backward"] == 2 * vector
    assert values["2 ranks, by head: forward"] == values["2 ranks, by head: backward"] == 2 * pair
    assert values["2 ranks, by head : dense"] == pytest.approx(pair / vector)
