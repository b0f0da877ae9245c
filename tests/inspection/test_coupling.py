from typing import Any

import pytest
import torch

from helpers.errors import refused
from helpers.hugging_face import random_tokens
from helpers.layers import randomize
from smht.inspection.coupling import coupling, held_statistics
from smht.models import SmhtConfig, SmhtForCausalLM, SmhtForSequenceClassification, SmhtModel

SIZES: dict[str, Any] = {"vocab_size": 37, "hidden_size": 12, "num_attention_heads": 3, "max_position_embeddings": 16}
IDS = random_tokens(batch=1)


def make(model_class: Any = SmhtForCausalLM, **fields: Any) -> Any:
    torch.manual_seed(0)
    model = model_class(SmhtConfig(**{**SIZES, "num_hidden_layers": 2, **fields})).double()
    randomize(model)
    return model.eval()


def off_diagonal(matrix: torch.Tensor) -> torch.Tensor:
    return matrix[~torch.eye(len(matrix), dtype=torch.bool)]


@pytest.mark.parametrize("stack", ["decoder", "encoder"])
@pytest.mark.parametrize("placement", ["pre", "post"])
def test_without_mixing_only_the_statistics_couple(stack: str, placement: str) -> None:
    model = make(SmhtModel, stack=stack, norm_placement=placement)
    found = coupling(model, IDS)
    assert (off_diagonal(found.held) == 0).all()
    assert (off_diagonal(found.live) > 0).all()
    assert (found.held.diagonal() > 0).all()


def test_with_a_norm_a_head_nothing_couples() -> None:
    found = coupling(make(norm_scope="head"), IDS)
    assert (off_diagonal(found.live) == 0).all()
    assert (off_diagonal(found.held) == 0).all()


@pytest.mark.parametrize("fields", [{"split": ()}, {"split": ("qkv", "feed_forward")}, {"mixing": "shuffle"}], ids=str)
def test_dense_projections_and_shuffling_couple(fields: dict[str, Any]) -> None:
    assert (off_diagonal(coupling(make(num_hidden_layers=4, **fields), IDS).held) > 0).all()


def test_the_tables_say_whether_chunks_have_a_lineage() -> None:
    assert "each chunk comes from its own" in str(coupling(make(), IDS))
    assert "shuffle mixing deals channels anew" in str(coupling(make(mixing="shuffle"), IDS))


def test_norms_are_those_of_the_jacobian() -> None:
    model = make()

    def last(embedded: torch.Tensor) -> torch.Tensor:
        return model.model(inputs_embeds=embedded, use_cache=False).last_hidden_state[0, 2]

    embedded = model.get_input_embeddings()(IDS).detach()
    jacobian = torch.autograd.functional.jacobian(last, embedded)[:, 0]  # [D, T, D]
    blocks = jacobian.view(3, 4, IDS.shape[1], 3, 4)
    expected = blocks.square().sum((1, 2, 4)).sqrt().T
    torch.testing.assert_close(coupling(model, IDS, position=2).live, expected)


def test_the_formula_of_the_docstring() -> None:
    norm = torch.nn.LayerNorm(5).double()
    randomize(norm)
    x = torch.randn(5, dtype=torch.float64)
    normalised = (x - x.mean()) / (x.var(correction=0) + norm.eps).sqrt()
    inner = torch.eye(5) - 1 / 5 - torch.outer(normalised, normalised) / 5
    expected = norm.weight[:, None] / (x.var(correction=0) + norm.eps).sqrt() * inner
    torch.testing.assert_close(torch.autograd.functional.jacobian(norm, x), expected)


@pytest.mark.parametrize("scope", ["model", "head"])
def test_holding_changes_no_value_and_ends(scope: str) -> None:
    model = make(norm_scope=scope, mixing="shuffle")
    before = model(IDS).logits
    with held_statistics(model):
        torch.testing.assert_close(model(IDS).logits, before)
    assert not any(module._forward_hooks for module in model.modules())


def test_the_mode_is_restored_and_other_heads_work() -> None:
    model = make(SmhtForSequenceClassification, stack="encoder").train()
    coupling(model, IDS)
    assert model.training


def test_refusals() -> None:
    with refused("models of one stack"):
        coupling(make(SmhtModel, stack="encoder_decoder"), IDS)
    with refused("one text", "[2, 6]"):
        coupling(make(), random_tokens())
    with refused("no position 6 in a text of 6 tokens"):
        coupling(make(), IDS, position=6)
