"""Several processes compute what one computes."""

from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from helpers import head_parallel as programs
from helpers.processes import Worlds
from smht.layers.position import POSITION_ENCODINGS

ONCE = settings(deadline=None, max_examples=6, suppress_health_check=[HealthCheck.function_scoped_fixture])


@pytest.mark.parametrize("ranks", [1, 2, 4])
@pytest.mark.parametrize("norm_scope", ["model", "head"])
@pytest.mark.parametrize("mixing", ["none", "shuffle"])
@pytest.mark.parametrize("tied", [False, True])
def test_a_step_is_that_of_one_process(world: Worlds, ranks: int, norm_scope: str, mixing: str, tied: bool) -> None:
    changes = {"norm_scope": norm_scope, "mixing": mixing, "tie_word_embeddings": tied}
    check_step(world, ranks, changes)


@pytest.mark.parametrize("position_embedding", list(POSITION_ENCODINGS))
def test_positions_of_each_kind(world: Worlds, position_embedding: str) -> None:
    check_step(world, 4, {"position_embedding": position_embedding, "mixing": "shuffle"})


@ONCE
@given(data=st.data())
def test_any_architecture(world: Worlds, data: st.DataObject) -> None:
    heads = data.draw(st.sampled_from([4, 8]), label="heads")
    head_width = data.draw(st.sampled_from([4, 6]), label="head width")
    changes = {
        "num_attention_heads": heads,
        "hidden_size": heads * head_width,
        "intermediate_size": heads * data.draw(st.integers(1, 5), label="feed-forward width of a head"),
        "num_hidden_layers": data.draw(st.integers(1, 4), label="blocks"),
        "vocab_size": data.draw(st.sampled_from([3, 17, 40, 101]), label="tokens"),
        "position_embedding": data.draw(st.sampled_from(list(POSITION_ENCODINGS)), label="positions"),
        **{
            name: data.draw(st.sampled_from(choices), label=name)
            for name, choices in {
                "mixing": ["none", "shuffle"],
                "norm_scope": ["model", "head"],
                "norm_placement": ["pre", "post"],
                "tie_word_embeddings": [False, True],
                "projection_bias": [False, True],
                "attention_pattern": ["full", "block_sparse"],
                "hidden_act": ["gelu", "relu"],
            }.items()
        },
    }
    check_step(world, data.draw(st.sampled_from([1, 2, 4]), label="ranks"), changes)


def test_a_large_common_mean_costs_no_digits(world: Worlds) -> None:
    """The variance of channels around 10⁶ is that of one process: E[x²] − E[x]² would lose twelve digits."""
    check_step(world, 4, {"num_hidden_layers": 1, "position_embedding": "none"}, offset=1e6, tolerance=1e-8)


@pytest.mark.parametrize(("ranks", "mixing", "tied"), [(2, "none", True), (2, "shuffle", False), (4, "shuffle", True)])
def test_fifty_steps_are_those_of_one_process(world: Worlds, ranks: int, mixing: str, tied: bool) -> None:
    changes = {"mixing": mixing, "tie_word_embeddings": tied, "num_hidden_layers": 2}
    outcomes = world.run(ranks, programs.train_both, changes, 50)
    expected = outcomes[0][0]
    assert len(set(expected)) == 50
    for _, found, weight_error in outcomes:
        assert found == pytest.approx(expected, rel=1e-6)  # the loss is rounded to float32
        assert weight_error < 1e-7


@pytest.mark.parametrize("tied", [False, True])
def test_saving_and_generating(world: Worlds, tmp_path: Path, tied: bool) -> None:
    changes = {"tie_word_embeddings": tied, "vocab_size": 70, "position_embedding": "rotary", "mixing": "shuffle"}
    outcomes = world.run(4, programs.saved_and_generated, changes, str(tmp_path))
    assert all(error == 0 and found == outcomes[0][1] for error, found in outcomes)


def test_gradient_checkpointing(world: Worlds) -> None:
    assert max(world.run(2, programs.checkpointed_gradients)) < 1e-12


@pytest.mark.parametrize(
    ("ranks", "changes", "says"),
    [
        (3, {}, "each of 3 ranks as many heads, and num_attention_heads = 4: take 1, 2, 4 ranks"),
        (2, {"split": ("qkv",)}, "needs every projection split, and output, feed_forward are dense"),
        (2, {"split": ()}, "qkv, output, feed_forward are dense: train such a model data-parallel"),
    ],
)
def test_what_cannot_be_cut(world: Worlds, ranks: int, changes: dict[str, Any], says: str) -> None:
    for line in world.run(ranks, programs.refusal, changes):
        assert says in line and "\n" not in line


def check_step(
    world: Worlds, ranks: int, changes: dict[str, Any], offset: float = 0.0, tolerance: float = 1e-10
) -> None:
    for errors in world.run(ranks, programs.errors_of_one_step, changes, offset):
        # The loss is a float32, as transformers makes it.
        loss_error = errors.pop("loss")
        assert loss_error <= torch.finfo(torch.float32).eps
        wrong = {name: error for name, error in errors.items() if not error <= tolerance}
        assert not wrong
