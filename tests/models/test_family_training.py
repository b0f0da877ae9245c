"""Training of every stack: gradient checkpointing, dropout."""

from typing import Any

import pytest
import torch
from torch import Tensor

from helpers.errors import refused
from helpers.hugging_face import TWO_STACKS, enable_gradient_checkpointing, left_padded, random_tokens, tiny
from helpers.tensors import assert_all_close
from smht import SmhtModel
from smht.layers.position import POSITION_ENCODINGS
from smht.models.cache_argument import CACHE_ARGUMENT
from smht.models.configuration import STACKS

SPARSE: dict[str, Any] = {"attention_pattern": "block_sparse", "sparse_block_size": 3}


def make(stack: str, **fields: Any) -> SmhtModel:
    options = {"stack": stack, "num_hidden_layers": 2, "hidden_dropout": 0.2, "attention_dropout": 0.2, **fields}
    return tiny(SmhtModel, **(options if stack != "encoder_decoder" else {**TWO_STACKS, **options})).double().train()


def inputs(stack: str) -> dict[str, Tensor]:
    source, mask = left_padded(random_tokens(3, 9), 2)
    given = {"input_ids": source, "attention_mask": mask}
    return given if stack != "encoder_decoder" else {**given, "decoder_input_ids": random_tokens(3, 5, seed=1)}


@pytest.mark.parametrize("pattern", [{}, SPARSE], ids=["full", "block_sparse"])
@pytest.mark.parametrize("encoding", POSITION_ENCODINGS)
@pytest.mark.parametrize("stack", STACKS)
def test_gradient_checkpointing_changes_no_gradient(stack: str, encoding: str, pattern: dict[str, Any]) -> None:
    results = []
    for options in (None, {}, {"use_reentrant": False}, {"use_reentrant": True}):
        model = make(stack, position_embedding=encoding, use_cache=False, **pattern)
        if options is not None:
            enable_gradient_checkpointing(model, **options)
        blocks = model.get_submodule("decoder" if stack == "encoder_decoder" else "").layers
        calls: list[None] = []
        blocks[0].mlp.register_forward_hook(lambda *_, calls=calls: calls.append(None))
        torch.manual_seed(0)
        loss = model(**inputs(stack)).last_hidden_state.square().mean()
        loss.backward()
        assert len(calls) == (1 if options is None else 2)
        results.append([loss.detach(), *(parameter.grad for parameter in model.parameters())])
        assert all(gradient is not None and gradient.any() for gradient in results[-1])
    for checkpointed in results[1:]:
        assert_all_close(checkpointed, results[0], tolerance=1e-12)


@pytest.mark.parametrize("stack", ["decoder", "encoder_decoder"])
def test_training_keeps_no_cache_unless_asked(stack: str) -> None:
    model = make(stack)
    given = inputs(stack)
    assert CACHE_ARGUMENT not in model(**given)
    assert model(**given, use_cache=True)[CACHE_ARGUMENT].get_seq_length() > 0
    assert CACHE_ARGUMENT in model.eval()(**given)


@pytest.mark.parametrize("stack", ["decoder", "encoder_decoder"])
def test_gradient_checkpointing_goes_without_a_cache(stack: str) -> None:
    model = make(stack)
    given = inputs(stack)
    cache = model(**given, use_cache=True)[CACHE_ARGUMENT]
    assert cache.get_seq_length() == (11 if stack == "decoder" else 5)
    enable_gradient_checkpointing(model)
    assert CACHE_ARGUMENT not in model(**given, use_cache=True)
    with refused("gradient checkpointing computes each block twice, so it cannot be used with a cache"):
        model(**given, **{CACHE_ARGUMENT: cache})


@pytest.mark.parametrize("name", ["hidden_dropout", "attention_dropout"])
@pytest.mark.parametrize("pattern", [{}, SPARSE], ids=["full", "block_sparse"])
@pytest.mark.parametrize("stack", STACKS)
def test_dropout_acts_in_training_only_and_follows_the_seed(stack: str, pattern: dict[str, Any], name: str) -> None:
    none = {"hidden_dropout": 0.0, "attention_dropout": 0.0}
    model, plain = make(stack, **{**none, name: 0.5}, **pattern), make(stack, **none, **pattern)
    drawn = []
    for seed in (1, 1, 2):
        torch.manual_seed(seed)
        drawn.append(model(**inputs(stack)).last_hidden_state)
    assert torch.equal(drawn[0], drawn[1])
    assert not torch.equal(drawn[0], drawn[2])
    expected = plain(**inputs(stack)).last_hidden_state
    assert torch.equal(model.eval()(**inputs(stack)).last_hidden_state, expected)


@pytest.mark.parametrize("stack", STACKS)
def test_dropout_reaches_the_embeddings_of_every_text(stack: str) -> None:
    model, first = make(stack, hidden_dropout=0.5), []
    for name, module in model.named_modules():
        if name.endswith("layers.0"):
            module.register_forward_pre_hook(lambda _, arguments: first.append(arguments[0]))
    model(**inputs(stack))
    assert len(first) == (2 if stack == "encoder_decoder" else 1)
    for embedded in first:
        assert 0.3 < (embedded == 0).double().mean() < 0.7
