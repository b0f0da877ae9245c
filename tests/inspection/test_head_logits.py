from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from helpers.errors import refused
from helpers.hugging_face import random_tokens
from helpers.layers import randomize
from smht.inspection import Drop, Swap, edited_heads
from smht.inspection.head_logits import head_logits
from smht.models import SmhtConfig, SmhtForCausalLM, SmhtForSeq2SeqLM, SmhtForSequenceClassification, SmhtModel

SIZES: dict[str, Any] = {"vocab_size": 37, "hidden_size": 16, "num_attention_heads": 4, "max_position_embeddings": 16}


def make(model_class: Any = SmhtForCausalLM, seed: int = 0, **fields: Any) -> Any:
    torch.manual_seed(seed)
    model = model_class(SmhtConfig(**{**SIZES, "num_hidden_layers": 2, **fields})).double()
    randomize(model)
    return model.eval()


@given(
    layers=st.integers(1, 12),
    split=st.sampled_from([("qkv", "output", "feed_forward"), ("qkv",), ()]),
    scope=st.sampled_from(["model", "head"]),
    tied=st.booleans(),
)
def test_contributions_sum_to_the_logits(layers: int, split: tuple[str, ...], scope: str, tied: bool) -> None:
    model = make(num_hidden_layers=layers, split=split, norm_scope=scope, tie_word_embeddings=tied)
    ids = random_tokens()
    found = head_logits(model, input_ids=ids)
    logits = model(ids).logits.detach()
    assert found.contributions.shape == (*ids.shape, 4, 37)
    error = (found.contributions.sum(2) - logits).norm() / logits.norm()
    assert error < 1e-12
    torch.testing.assert_close(found.logits, logits)


def test_the_contribution_of_a_chunk_is_what_is_lost_without_it() -> None:
    model, ids = make(), random_tokens()
    found = head_logits(model, input_ids=ids)
    whole = model(ids).logits
    with torch.no_grad():
        model.lm_head.weight[:, 4:8] = 0  # chunk 1
    torch.testing.assert_close(whole - model(ids).logits, found.contributions[:, :, 1])


def test_some_tokens_and_the_difference_between_two() -> None:
    model, ids = make(), random_tokens()
    some = head_logits(model, torch.tensor([5, 30]), input_ids=ids)
    every = head_logits(model, input_ids=ids)
    torch.testing.assert_close(some.contributions, every.contributions[..., [5, 30]])
    torch.testing.assert_close(some.between(0, 1).sum(-1), every.logits[..., 5] - every.logits[..., 30])


@given(layers=st.integers(1, 12), tokens=st.tuples(st.integers(0, 36), st.integers(0, 36)), variant=st.integers(0, 3))
def test_the_difference_of_two_losses_is_the_sum_over_chunks(
    layers: int, tokens: tuple[int, int], variant: int
) -> None:
    fields = ({}, {"split": ()}, {"norm_scope": "head", "mixing": "shuffle"}, {"norm_placement": "post"})[variant]
    model, ids = make(num_hidden_layers=layers, **fields), random_tokens()
    by_chunk = head_logits(model, torch.tensor(tokens), input_ids=ids).between(0, 1)
    losses = -model(ids).logits.detach().log_softmax(-1)
    difference = losses[..., tokens[1]] - losses[..., tokens[0]]
    error = (by_chunk.sum(-1) - difference).norm()
    assert error <= 1e-12 * difference.norm() + 1e-14


def train_a_little(model: Any, seed: int) -> None:
    """Ten steps on tokens of its own."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    for step in range(10):
        ids = random_tokens(batch=4, seed=100 * seed + step)
        model(ids, labels=ids).loss.backward()
        optimizer.step()
        optimizer.zero_grad()


def test_with_a_norm_a_head_two_models_trained_apart_give_side_by_side_the_sum_of_their_logits() -> None:
    """Two models of one head each are a model of two heads (seed 000, 6.1)."""
    narrow = [make(seed=seed, hidden_size=8, num_attention_heads=1, norm_scope="head") for seed in (0, 1)]
    for seed, model in enumerate(narrow):
        untrained = model.state_dict()["lm_head.weight"].clone()
        train_a_little(model, seed)
        assert not torch.equal(model.state_dict()["lm_head.weight"], untrained)
    wide = make(hidden_size=16, num_attention_heads=2, norm_scope="head")
    states = [model.state_dict() for model in narrow]
    with torch.no_grad():
        for name, weight in wide.state_dict().items():
            # Split projections are stacked by head, all else has its channels side by side.
            weight.copy_(torch.cat([state[name] for state in states], dim=0 if weight.dim() == 3 else -1))
    ids = random_tokens()
    found = head_logits(wide, input_ids=ids)
    assert found.is_by_lineage
    for head, model in enumerate(narrow):
        torch.testing.assert_close(found.contributions[:, :, head], model(ids).logits, rtol=1e-12, atol=1e-12)
    logits = sum(model(ids).logits for model in narrow)
    torch.testing.assert_close(wide(ids).logits, logits, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize(
    ("fields", "is_by_lineage", "says"),
    [
        ({}, True, "but for the mean and variance"),
        ({"norm_scope": "head"}, True, "alone"),
        ({"mixing": "shuffle"}, False, "shuffle mixing"),
        ({"mixing": "shuffle", "num_hidden_layers": 1, "num_decoder_layers": 2}, False, "shuffle mixing"),
        ({"mixing": "shuffle", "num_hidden_layers": 1}, True, "but for the mean"),
        ({"split": ()}, False, "dense projections (qkv, output, feed_forward)"),
        ({"split": ("qkv", "feed_forward")}, False, "(output)"),
    ],
)
def test_what_the_contributions_mean_is_said(fields: dict[str, Any], is_by_lineage: bool, says: str) -> None:
    inputs, model_class = {"input_ids": random_tokens()}, SmhtForCausalLM
    if "num_decoder_layers" in fields:
        fields, model_class = {**fields, "stack": "encoder_decoder"}, SmhtForSeq2SeqLM
        inputs["decoder_input_ids"] = random_tokens()
    found = head_logits(make(model_class, **fields), **inputs)
    assert found.is_by_lineage == is_by_lineage
    assert says in found.note


@pytest.mark.parametrize(("what", "is_by_lineage"), [("outputs", False), ("weights", True)])
def test_heads_that_write_in_each_others_chunks_end_the_lineage(what: Any, is_by_lineage: bool) -> None:
    model = make()
    tokens = random_tokens()
    with edited_heads(model, [Swap(0, 0, 1, what=what)]):
        found = head_logits(model, input_ids=tokens)
    assert found.is_by_lineage == is_by_lineage
    assert ("heads 0 and 1 write in each other's chunks" in found.note) != is_by_lineage
    with edited_heads(model, [Drop(0, 0)]):
        assert head_logits(model, input_ids=tokens).is_by_lineage
    assert head_logits(model, input_ids=tokens).is_by_lineage


def test_other_heads() -> None:
    ids = random_tokens()
    classifier = make(SmhtForSequenceClassification, stack="encoder", num_labels=3).train()
    found = head_logits(classifier, input_ids=ids)
    assert classifier.training
    torch.testing.assert_close(found.contributions.sum(-2), classifier.eval()(ids).logits)
    translator = make(SmhtForSeq2SeqLM, stack="encoder_decoder")
    found = head_logits(translator, input_ids=ids, decoder_input_ids=ids[:, :3])
    torch.testing.assert_close(found.logits, translator(ids, decoder_input_ids=ids[:, :3]).logits)


def test_refusals() -> None:
    with refused("no logits to split", "SmhtModel has no head"):
        head_logits(make(SmhtModel), input_ids=random_tokens())
    with refused("no token 2 among the 2 asked for"):
        head_logits(make(), torch.tensor([3, 36]), input_ids=random_tokens()).between(0, 2)
    with refused("token 37 is not one of the head's 37: they are 0 to 36"):
        head_logits(make(), torch.tensor([3, 37]), input_ids=random_tokens())
