"""`torch.compile(fullgraph=True)`: one graph, no break, the same numbers."""

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch._dynamo.utils import counters
from transformers import StaticCache

from helpers.hugging_face import (
    ARCHITECTURES,
    CONTEXT,
    left_padded,
    random_tokens,
    tiny_model,
    with_last_blocks_only,
)
from smht.models.cache_argument import CACHE_ARGUMENT

# PyTorch's own compiler uses what PyTorch deprecates.
pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning:torch")


@pytest.fixture(autouse=True)
def fresh_compiler() -> Iterator[None]:
    torch._dynamo.reset()
    counters.clear()
    yield
    torch._dynamo.reset()


def assert_no_graph_break(graphs: int) -> None:
    assert sum(counters["graph_break"].values()) == 0
    assert counters["stats"]["unique_graphs"] == graphs


def loss_and_gradients(model: nn.Module, function: Any, **inputs: Tensor) -> list[Tensor]:
    loss = function(**inputs).loss
    return [loss, *torch.autograd.grad(loss, list(model.parameters()))]


@pytest.mark.parametrize(
    ("architecture", "backend"),
    [
        ("shuffle", "aot_eager"),
        ("dense", "aot_eager"),
        pytest.param("split", "aot_eager", marks=pytest.mark.slow),
        pytest.param("head-norm", "aot_eager", marks=pytest.mark.slow),
        pytest.param("shuffle", "inductor", marks=pytest.mark.slow),
    ],
)
def test_forward_and_backward_are_one_graph(architecture: str, backend: str) -> None:
    model = tiny_model(architecture, use_cache=False, num_hidden_layers=2)
    if (architecture, backend) != ("shuffle", "aot_eager"):  # which has both blocks in one graph
        model = with_last_blocks_only(model)
    compiled = torch.compile(model, fullgraph=True, backend=backend)
    inputs = {"input_ids": random_tokens(2, 8), "labels": random_tokens(2, 8)}
    ours = loss_and_gradients(model, compiled, **inputs)
    assert_no_graph_break(graphs=1)
    for result, expected in zip(ours, loss_and_gradients(model, model, **inputs), strict=True):
        torch.testing.assert_close(result, expected, rtol=1e-4, atol=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize("architecture", ["head-norm", "dense"])
@torch.no_grad()
def test_compiled_model_takes_other_lengths_and_padding(architecture: str) -> None:
    model = with_last_blocks_only(tiny_model(architecture, use_cache=False, num_hidden_layers=2))
    compiled = torch.compile(model, fullgraph=True, backend="eager")
    for length, padding in ((5, 0), (9, 0), (7, 0), (6, 2), (9, 2)):
        input_ids, mask = left_padded(random_tokens(2, length), padding)
        options = {"attention_mask": mask} if padding else {}
        expected = model(input_ids, **options).logits[:, padding:]
        torch.testing.assert_close(compiled(input_ids, **options).logits[:, padding:], expected)
    # One graph for the first length, one for any length, the same again with a mask.
    assert counters["stats"]["unique_graphs"] <= 4
    assert sum(counters["graph_break"].values()) == 0


@pytest.mark.parametrize("masked", [False, True])
@torch.no_grad()
def test_decoding_step_with_a_static_cache_is_one_graph_for_all_steps(masked: bool) -> None:
    model = tiny_model("shuffle", num_hidden_layers=2).double()
    input_ids = random_tokens(2, 9)
    expected = model(input_ids).logits
    options: dict[str, Any] = {CACHE_ARGUMENT: StaticCache(config=model.config, max_cache_len=CONTEXT)}
    if masked:
        options["attention_mask"] = torch.ones(2, CONTEXT, dtype=torch.long)
    logits = [model(input_ids[:, :5], **options).logits]
    step = torch.compile(model, fullgraph=True, backend="eager")
    logits += [step(token, **options).logits for token in input_ids[:, 5:].split(1, 1)]
    torch.testing.assert_close(torch.cat(logits, 1), expected, rtol=0, atol=1e-12)
    assert_no_graph_break(graphs=1)


@pytest.mark.slow
@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_compiled_generation_gives_the_same_text(architecture: str) -> None:
    deals_channels = ARCHITECTURES[architecture].get("mixing") == "shuffle"  # from one block to the next
    model = tiny_model(architecture, num_hidden_layers=2 if deals_channels else 1)
    options = {"do_sample": False, "max_new_tokens": 6}
    expected = model.generate(random_tokens(), **options)
    model.forward = torch.compile(model.forward, fullgraph=True, backend="aot_eager")
    produced = model.generate(random_tokens(), cache_implementation="static", **options)
    assert torch.equal(produced, expected)
    # One graph for the prompt, one for every step after it.
    assert_no_graph_break(graphs=2)
