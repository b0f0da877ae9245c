from typing import Any

import pytest
import torch

from helpers.converted_models import logits, make, random_deal
from helpers.dense_models import embedded_model
from helpers.errors import refused
from smht import SmhtConfig
from smht.conversion.assignment import Deal, find_deal
from smht.conversion.models import cut, permuted, split_config, to_dense
from smht.conversion.permutation import pose
from smht.conversion.projections import projections
from smht.layers.block import SPLITTABLE

OPTIONS: list[dict[str, Any]] = [
    {"position_embedding": "learned", "tie_word_embeddings": True},
    {"position_embedding": "sinusoidal"},
    {"position_embedding": "relative", "projection_bias": True},
    {"position_embedding": "rotary", "norm_placement": "post"},
    {"position_embedding": "none", "attention_pattern": "block_sparse", "projection_bias": True},
    {"stack": "encoder", "position_embedding": "relative"},
    {"stack": "encoder_decoder", "position_embedding": "relative", "tie_word_embeddings": True},
    {"stack": "encoder_decoder", "projection_bias": True},
]
MIXINGS = ["none", "shuffle"]


def assert_same(ours: torch.Tensor, theirs: torch.Tensor) -> None:
    torch.testing.assert_close(ours, theirs, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("fields", [*OPTIONS, {"norm_scope": "head"}], ids=str)
@pytest.mark.parametrize("mixing", MIXINGS)
def test_a_permuted_model_computes_the_same(fields: dict[str, Any], mixing: str) -> None:
    if mixing == "shuffle" and "norm_scope" in fields:
        pytest.skip("a norm a head with shuffle is refused, which has a test of its own")
    dense = make(split=(), **fields)
    target = split_config(dense.config, 4, SPLITTABLE, mixing)
    problem = pose(dense, target)
    deal = Deal.identity(problem) if problem.residual_is_fixed else random_deal(problem, 0)
    deal = Deal(deal.residual, random_deal(problem, 1).units)
    other = permuted(dense, deal)
    assert_same(logits(other), logits(dense))
    assert any(not torch.equal(a, b) for a, b in zip(other.parameters(), dense.parameters(), strict=True))


@pytest.mark.parametrize("mixing", MIXINGS)
@pytest.mark.parametrize("split", [SPLITTABLE, ("qkv",), ("output", "feed_forward"), ("feed_forward",)])
def test_the_cut_keeps_the_share_that_was_promised(mixing: str, split: tuple[str, ...]) -> None:
    dense = make(split=())
    target = split_config(dense.config, None, split, mixing)
    problem = pose(dense, target)
    for deal in (Deal.identity(problem), find_deal(problem)):
        model = cut(permuted(dense, deal), target)
        assert model.config.split == split and model.config.mixing == mixing
        of_split = [p for p in projections(model) if p.part in split]
        kept = sum(float(p.module.weight.detach().square().sum()) for p in of_split)
        whole = sum(float(p.module.weight.detach().square().sum()) for p in projections(dense) if p.part in split)
        assert kept / whole == pytest.approx(deal.share(problem))


@pytest.mark.parametrize("fields", OPTIONS, ids=str)
@pytest.mark.parametrize("mixing", MIXINGS)
def test_a_hidden_split_model_is_found(fields: dict[str, Any], mixing: str) -> None:
    """With shuffle heads stay in place: which of them is which is then a search among all of their orders."""
    split = make(mixing=mixing, **fields)
    dense = embedded_model(split)
    problem = pose(dense, split.config)
    hiding = random_deal(problem, 3, deals_heads=mixing == "none")
    if problem.residual_is_fixed:
        hiding = Deal(Deal.identity(problem).residual, hiding.units)
    hidden = permuted(dense, hiding)
    posed = pose(hidden, split.config)
    found = find_deal(posed)
    assert found.share(posed) == pytest.approx(1, abs=1e-12)
    assert Deal.identity(posed).share(posed) < 0.6 or problem.residual_is_fixed
    assert_same(logits(cut(permuted(hidden, found), split.config)), logits(split))


@pytest.mark.parametrize("fields", [*OPTIONS, {"norm_scope": "head"}, {"split": ("output",)}], ids=str)
@pytest.mark.parametrize("mixing", MIXINGS)
def test_the_dense_model_of_a_split_one(fields: dict[str, Any], mixing: str) -> None:
    if mixing == "shuffle" and "norm_scope" in fields:
        pytest.skip("a norm a head with shuffle is refused, which has a test of its own")
    split = make(mixing=mixing, **fields)
    dense = to_dense(split)
    assert dense.config.split == () and dense.config.mixing == "none"
    assert_same(logits(dense), logits(split))
    for ours, theirs in zip(dense.state_dict().values(), embedded_model(split).state_dict().values(), strict=True):
        assert torch.equal(ours, theirs)
    assert_same(logits(cut(dense, split.config)), logits(split))


def test_models_that_are_refused() -> None:
    config = SmhtConfig(split=())
    for arguments, says in (
        ((SmhtConfig(), 4, SPLITTABLE, "none"), "split already"),
        ((config, 8, SPLITTABLE, "none"), "heads = 8, and the model attends with 4"),
        ((SmhtConfig(split=(), num_attention_heads=1), None, SPLITTABLE, "none"), "one head"),
        ((config, 4, (), "none"), "split names no projection"),
        ((config, 4, ("qvk",), "none"), "did you mean qkv"),
        ((SmhtConfig(split=(), norm_scope="head"), 4, SPLITTABLE, "shuffle"), "norm_scope = 'head'"),
        ((SmhtConfig(split=(), intermediate_size=1022), 4, SPLITTABLE, "none"), "nearest are 1020 and 1024"),
    ):
        with refused(says):
            split_config(*arguments)
    with refused("dense already"):
        to_dense(make(split=()))
    with refused("LayerNorm a head over shuffled channels"):
        to_dense(make(mixing="shuffle", norm_scope="head"))
