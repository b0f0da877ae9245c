"""Models that transformers' own tensor parallelism cuts compute what whole ones compute."""

import os
from pathlib import Path
from typing import Any

import pytest
import torch

from helpers import tensor_parallel as programs
from helpers.processes import Worlds
from smht.errors import UsageError
from smht.models import SmhtConfig
from smht.models.tensor_parallel import HAS_STYLES, refuse_tensor_parallel

# The versions that CI has are known to have it: there nothing is skipped.
pytestmark = pytest.mark.skipif(
    not HAS_STYLES and not os.environ.get("CI"), reason="transformers' styles have another interface in this version"
)

PROJECTIONS = 6


@pytest.mark.parametrize(
    ("changes", "others"),
    [
        ({}, 2),
        ({"split": (), "tie_word_embeddings": True, "position_embedding": "rotary"}, 1),
        ({"split": ("qkv",), "mixing": "shuffle", "projection_bias": True}, 2 + 4),
        ({"split": ("output", "feed_forward"), "norm_scope": "head", "position_embedding": "rotary"}, 2),
    ],
    ids=["split", "dense", "split qkv", "dense qkv"],
)
def test_a_step_is_that_of_one_process(world: Worlds, tmp_path: Path, changes: dict[str, Any], others: int) -> None:
    blocks = 2
    # Older versions of transformers cut only vocabularies that the ranks divide.
    programs.save(tmp_path, {"num_hidden_layers": blocks, "vocab_size": 24, **changes})
    for errors, cut, (expected, found) in world.run(2, programs.errors_of_a_step, str(tmp_path)):
        # The loss is a float32, as transformers makes it.
        assert errors.pop("loss") <= torch.finfo(torch.float32).eps
        assert {name: error for name, error in errors.items() if error > 1e-10} == {}
        assert cut >= PROJECTIONS * blocks + others
        assert found == expected


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"position_embedding": "relative"}, "this is position_embedding = 'relative'"),
        ({"num_attention_heads": 3, "hidden_size": 12}, "gives each of 2 ranks as many heads, and there are 3"),
    ],
)
def test_what_cannot_be_cut(world: Worlds, tmp_path: Path, changes: dict[str, Any], says: str) -> None:
    programs.save(tmp_path, changes)
    for line in world.run(2, programs.refusal, str(tmp_path)):
        assert says in line and "\n" not in line


@pytest.mark.parametrize("stack", ["encoder", "encoder_decoder"])
def test_other_stacks_have_no_plan(stack: str) -> None:
    config = SmhtConfig(stack=stack)
    assert config.base_model_tp_plan is None
    with pytest.raises(UsageError, match=f"is for decoders .* this is stack = '{stack}'"):
        refuse_tensor_parallel(config, 2)
