"""`torch.compile(fullgraph=True)` of every stack: one graph, the same numbers."""

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Tensor
from torch._dynamo.utils import counters
from transformers import StaticCache

from helpers.hugging_face import (
    CONTEXT,
    TWO_STACKS,
    left_padded,
    random_tokens,
    tiny,
    tiny_model,
    tiny_seq2seq,
    with_last_blocks_only,
)
from smht import SmhtModel
from smht.models.cache_argument import CACHE_ARGUMENT

# PyTorch's own compiler uses what PyTorch deprecates.
pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning:torch")

SPARSE: dict[str, Any] = {"attention_pattern": "block_sparse", "sparse_block_size": 3}


@pytest.fixture(autouse=True)
def fresh_compiler() -> Iterator[None]:
    torch._dynamo.reset()
    counters.clear()
    yield
    torch._dynamo.reset()


def assert_no_graph_break() -> None:
    assert sum(counters["graph_break"].values()) == 0
    assert counters["stats"]["unique_graphs"] == 1


def make(stack: str, **fields: Any) -> SmhtModel:
    options = {"stack": stack, "use_cache": False, "num_hidden_layers": 2, **fields}
    given = options if stack != "encoder_decoder" else {**TWO_STACKS, **options}
    return with_last_blocks_only(tiny(SmhtModel, **given)).double()


def inputs(stack: str, padding: int) -> dict[str, Tensor]:
    """Of every stack, with padding on the left or without a mask."""
    input_ids, mask = left_padded(random_tokens(2, 7), padding)
    given = {"input_ids": input_ids} | ({"attention_mask": mask} if padding else {})
    if stack == "encoder_decoder":
        target, target_mask = left_padded(random_tokens(2, 5, seed=1), padding)
        given |= {"decoder_input_ids": target} | ({"decoder_attention_mask": target_mask} if padding else {})
    return given


@pytest.mark.parametrize(
    ("stack", "fields", "padding"),
    [
        ("decoder", {"position_embedding": "relative"}, 0),
        ("decoder", {"position_embedding": "rotary", **SPARSE}, 2),
        ("encoder", {"position_embedding": "relative", **SPARSE}, 2),
        ("encoder", {"position_embedding": "sinusoidal", **SPARSE, "attn_implementation": "eager"}, 2),
        ("encoder", {"norm_placement": "post", "position_embedding": "none"}, 2),
        ("encoder_decoder", {"position_embedding": "rotary"}, 2),
        ("encoder_decoder", {"position_embedding": "relative", "norm_placement": "post", **SPARSE}, 0),
    ],
    ids=str,
)
def test_forward_is_one_graph(stack: str, fields: dict[str, Any], padding: int) -> None:
    model, given = make(stack, **fields), inputs(stack, padding)
    compiled = torch.compile(model, fullgraph=True, backend="eager")
    ours = compiled(**given).last_hidden_state
    assert_no_graph_break()
    torch.testing.assert_close(ours, model(**given).last_hidden_state, rtol=0, atol=1e-10)


@pytest.mark.parametrize("stack", ["encoder", pytest.param("encoder_decoder", marks=pytest.mark.slow)])
def test_backward_is_one_graph(stack: str) -> None:
    model, given = make(stack, position_embedding="relative", **SPARSE), inputs(stack, 2)
    results = []
    for function in (torch.compile(model, fullgraph=True, backend="aot_eager"), model):
        loss = function(**given).last_hidden_state.square().mean()
        results.append([loss, *torch.autograd.grad(loss, list(model.parameters()))])
    assert_no_graph_break()
    for ours, expected in zip(*results, strict=True):
        torch.testing.assert_close(ours, expected, rtol=1e-9, atol=1e-10)


@pytest.mark.parametrize(
    "fields", [{"position_embedding": "relative"}, {"position_embedding": "rotary", **SPARSE}], ids=str
)
@torch.no_grad()
def test_decoding_step_with_a_static_cache_is_one_graph_for_all_steps(fields: dict[str, Any]) -> None:
    model = tiny_model(num_hidden_layers=2, **fields).double()
    input_ids = random_tokens(2, 9)
    expected = model(input_ids).logits
    options: dict[str, Any] = {CACHE_ARGUMENT: StaticCache(config=model.config, max_cache_len=CONTEXT)}
    logits = [model(input_ids[:, :5], **options).logits]
    step = torch.compile(model, fullgraph=True, backend="eager")
    logits += [step(token, **options).logits for token in input_ids[:, 5:].split(1, 1)]
    torch.testing.assert_close(torch.cat(logits, 1), expected, rtol=0, atol=1e-10)
    assert_no_graph_break()


@pytest.mark.slow
@pytest.mark.parametrize(
    "fields", [{"position_embedding": "relative"}, {"position_embedding": "rotary", **SPARSE}], ids=str
)
def test_compiled_generation_of_an_encoder_decoder_gives_the_same_text(fields: dict[str, Any]) -> None:
    model = tiny_seq2seq(num_hidden_layers=1, num_decoder_layers=2, **fields)
    source, mask = left_padded(random_tokens(2, 7), 2)
    options = {"attention_mask": mask, "do_sample": False, "max_new_tokens": 6}
    expected = model.generate(source, **options)
    model.forward = torch.compile(model.forward, fullgraph=True, backend="eager")
    produced = model.generate(source, cache_implementation="static", disable_compile=True, **options)
    assert torch.equal(produced, expected)
    assert sum(counters["graph_break"].values()) == 0
    # One graph for the first token, when the source is read, and one for every step after it.
    assert counters["stats"]["unique_graphs"] == 2
