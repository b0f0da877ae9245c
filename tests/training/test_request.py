import json
import math
from typing import Any

import pytest
from transformers import set_seed

from helpers.errors import refused
from smht.training.budget import Budget
from smht.training.request import TrainRequest


def test_defaults_ask_for_nothing() -> None:
    asked = TrainRequest().to_dict()
    assert asked["budget"] == {"steps": None, "epochs": None, "seconds": None}
    assert {name for name, value in asked.items() if value not in (None, (), {})} == {
        "task",
        "validation_fraction",
        "errors",
        "weight_decay",
        "device",
        "seed",
        "budget",
        "keep_checkpoints",
        "parametrisation",
    }


def test_it_survives_json() -> None:
    request = TrainRequest(
        texts=("a", "b"), architecture={"split": ("qkv",)}, budget=Budget(epochs=1.5), learning_rate=1e-3, warmup=0
    )
    again = json.loads(json.dumps(request.to_dict()))
    assert again["texts"] == ["a", "b"]
    assert again["architecture"] == {"split": ["qkv"]}
    assert again["budget"]["epochs"] == 1.5
    assert again["learning_rate"] == 1e-3
    assert again["warmup"] == 0


@pytest.mark.parametrize("name", ["context", "batch_size", "learning_rate", "evaluate_every", "keep_checkpoints"])
@pytest.mark.parametrize("value", [0, -1, math.nan, math.inf])
def test_what_must_be_above_zero(name: str, value: float) -> None:
    with refused(f"{name} = {value}", "above 0"):
        TrainRequest(**{name: value})


def test_a_window_of_one_token_is_refused() -> None:
    with refused("context = 1", "at least 2"):
        TrainRequest(context=1)


@pytest.mark.parametrize("name", ["warmup", "weight_decay", "seed"])
@pytest.mark.parametrize("value", [-1, math.nan, math.inf])
def test_what_may_be_zero(name: str, value: float) -> None:
    TrainRequest(**{name: 0})
    with refused(f"{name} = {value}", "at least 0"):
        TrainRequest(**{name: value})


def test_the_largest_seed_is_the_largest_that_can_be_set() -> None:
    largest = 2**32 - 1
    set_seed(TrainRequest(seed=largest).seed)
    with refused(f"seed = {largest + 1}", f"at most {largest}"):
        TrainRequest(seed=largest + 1)


@pytest.mark.parametrize(
    ("values", "needles"),
    [
        ({"texts": ("a.txt",), "dataset": "d"}, ("texts", "--dataset")),
        ({"dtype": "float16"}, ("dtype = 'float16'", "float32, bfloat16")),
        ({"parametrisation": "mu"}, ("parametrisation = 'mu'", "did you mean mup?")),
    ],
)
def test_other_refusals(values: dict[str, Any], needles: tuple[str, ...]) -> None:
    with refused(*needles):
        TrainRequest(**values)
