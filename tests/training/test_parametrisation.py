import copy
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn

from helpers.errors import refused
from smht import SmhtConfig, SmhtForCausalLM, SmhtForSeq2SeqLM, SmhtForSequenceClassification
from smht.models import SmhtPreTrainedModel
from smht.tasks.language_modelling import LanguageModelling
from smht.training.parametrisation import (
    BASE_HEADS,
    BASE_WIDTH,
    MUP,
    STANDARD,
    Scale,
    check_parametrisation,
    default_learning_rate,
    initialise,
    parameter_groups,
    scales,
)

RATE, DECAY = 4e-3, 0.1


def make(kind: type[SmhtPreTrainedModel] = SmhtForCausalLM, parametrisation: str = STANDARD, **fields: Any) -> Any:
    torch.manual_seed(0)
    sizes: dict[str, Any] = {"hidden_size": 64, "num_attention_heads": 4, "num_hidden_layers": 1, "vocab_size": 50}
    model = kind(SmhtConfig(**{**sizes, "max_position_embeddings": 8, **fields}))
    initialise(model, parametrisation)
    return model


def deviation(weight: Tensor) -> float:
    return float(weight.detach().square().mean().sqrt())


def rates(model: nn.Module) -> dict[nn.Parameter, float]:
    groups = parameter_groups(model, RATE, DECAY, MUP)
    return {weight: group["lr"] / RATE for group in groups for weight in group["params"]}


def test_a_projection_learns_by_the_inputs_that_an_output_sums() -> None:
    model = make(split=("qkv", "feed_forward"), intermediate_size=192, projection_bias=True)
    found, block = rates(model), model.model.layers[0]
    expected = {
        block.self_attn.q_proj: 32 / (64 / 4),
        block.self_attn.k_proj: 32 / (64 / 4),
        block.self_attn.v_proj: 32 / (64 / 4),
        block.self_attn.o_proj: 32 / 64,
        block.mlp.up_proj: 32 / (64 / 4),
        block.mlp.down_proj: 128 / (192 / 4),
        model.lm_head: 128 / 64,
    }
    for projection, rate in expected.items():
        assert found[projection.weight] == rate
    others = [weight for weight in found if all(weight is not each.weight for each in expected)]
    assert others and all(found[weight] == 1 for weight in others)


def test_the_base_model_is_the_standard_one() -> None:
    sizes = {"hidden_size": BASE_WIDTH, "num_attention_heads": BASE_HEADS}
    for is_tied in (False, True):
        standard, mup = (make(parametrisation=name, tie_word_embeddings=is_tied, **sizes) for name in (STANDARD, MUP))
        assert all(torch.equal(a, b) for a, b in zip(standard.parameters(), mup.parameters(), strict=True))
        assert set(rates(mup).values()) == {1.0}


@pytest.mark.parametrize("positions", ["learned", "relative", "sinusoidal"])
def test_what_blocks_read_begins_as_large_at_every_width(positions: str) -> None:
    def read(width: int) -> tuple[float, float]:
        model = make(parametrisation=MUP, hidden_size=width, vocab_size=2000, position_embedding=positions)
        stack, found = model.model, rates(model)
        return (
            deviation(stack.embed_tokens.weight) * stack.embedding_scale,
            found[stack.embed_tokens.weight] * stack.embedding_scale,
        )

    (narrow, narrow_step), (wide, wide_step) = read(32), read(256)
    assert narrow == pytest.approx(wide, rel=0.03) and narrow_step == pytest.approx(wide_step)
    if positions == "relative":
        tables = [
            make(parametrisation=MUP, hidden_size=width, position_embedding=positions).model.embed_positions
            for width in (32, 256)
        ]
        first, second = (deviation(table.relative_attention_bias.weight) for table in tables)
        assert first == pytest.approx(second, rel=0.2)


def test_a_head_of_its_own_begins_and_learns_as_one_over_the_width() -> None:
    narrow, wide = (make(parametrisation=MUP, hidden_size=width, vocab_size=2000) for width in (64, 256))
    assert deviation(narrow.lm_head.weight) / deviation(wide.lm_head.weight) == pytest.approx(4, rel=0.03)
    assert rates(narrow)[narrow.lm_head.weight] == 4 * rates(wide)[wide.lm_head.weight] == BASE_WIDTH / 64


class WithMultiplier(nn.Module):
    """The model as the papers write it: the norm before the head as in `standard`, and logits times a factor."""

    def __init__(self, model: SmhtForCausalLM, factor: float) -> None:
        super().__init__()
        self.model, self.factor = copy.deepcopy(model), factor
        with torch.no_grad():
            for weight in self.model.model.last_norm.parameters():
                weight.div_(factor)

    def forward(self, ids: Tensor) -> Tensor:
        return self.factor * self.model(ids).logits


@pytest.mark.parametrize("placement", ["pre", "post"])
@pytest.mark.parametrize(("positions", "factor"), [("none", 2.0), ("sinusoidal", 2**0.5)])
def test_the_norm_before_a_tied_head_is_the_logit_multiplier(placement: str, positions: str, factor: float) -> None:
    """Also in how it learns: two steps of Adam make the same function."""
    fields = {"tie_word_embeddings": True, "position_embedding": positions, "norm_placement": placement}
    model = make(parametrisation=MUP, **fields).double().train()
    written_out = WithMultiplier(model, factor)
    scale = scales(model)
    for weight in model.model.last_norm.parameters():
        assert scale[weight] == Scale(pytest.approx(factor), pytest.approx(factor))  # pyright: ignore
    groups = [
        {"params": [twin], "lr": RATE * (1.0 if name.startswith(("norm", "layers.0.post")) else scale[weight].rate)}
        for (name, weight), twin in zip(
            model.model.named_parameters(), written_out.model.model.parameters(), strict=True
        )
        if weight in scale
    ]
    known = {id(weight) for group in groups for weight in group["params"]}
    rest = [weight for weight in written_out.parameters() if id(weight) not in known]
    optimizers = [
        torch.optim.AdamW(parameter_groups(model, RATE, 0.0, MUP), eps=1e-30),
        torch.optim.AdamW([*groups, {"params": rest, "lr": RATE}], eps=1e-30, weight_decay=0.0),
    ]
    ids = torch.randint(50, (4, 8), generator=torch.Generator().manual_seed(0))
    logits = [lambda: model(ids).logits, lambda: written_out(ids)]
    for _ in range(2):
        found = [make_logits() for make_logits in logits]
        torch.testing.assert_close(*found, rtol=1e-9, atol=1e-9)
        for each, optimizer in zip(found, optimizers, strict=True):
            nn.functional.cross_entropy(each[:, :-1].flatten(0, 1), ids[:, 1:].flatten()).backward()
            optimizer.step()
            optimizer.zero_grad()
    torch.testing.assert_close(*[make_logits() for make_logits in logits], rtol=1e-7, atol=1e-9)


KINDS = {
    "decoder": SmhtForCausalLM,
    "encoder_decoder": SmhtForSeq2SeqLM,
    "encoder": SmhtForSequenceClassification,
}


@given(
    stack=st.sampled_from(sorted(KINDS)),
    heads=st.sampled_from([1, 2, 4]),
    channels=st.integers(2, 12),
    split=st.sets(st.sampled_from(["qkv", "output", "feed_forward"])),
    is_tied=st.booleans(),
    positions=st.sampled_from(["learned", "sinusoidal", "relative", "none"]),
    placement=st.sampled_from(["pre", "post"]),
)
def test_every_weight_is_in_one_group(
    stack: str, heads: int, channels: int, split: set[str], is_tied: bool, positions: str, placement: str
) -> None:
    model = make(
        KINDS[stack],
        stack=stack,
        hidden_size=heads * channels,
        num_attention_heads=heads,
        split=tuple(sorted(split)),
        tie_word_embeddings=is_tied and stack != "encoder",
        position_embedding=positions,
        norm_placement=placement,
    )
    for name in (STANDARD, MUP):
        groups = parameter_groups(model, RATE, DECAY, name)
        members = [id(weight) for group in groups for weight in group["params"]]
        assert sorted(members) == sorted(map(id, model.parameters()))
        for group in groups:
            assert group["lr"] > 0
            decays = {weight.dim() > 1 for weight in group["params"]}
            assert len(decays) == 1
            assert group["lr"] * group["weight_decay"] == pytest.approx(RATE * DECAY if decays.pop() else 0.0)
        assert groups[0]["lr"] == RATE
    assert all(scale.initial > 0 and scale.rate > 0 for scale in scales(model).values())


def test_the_standard_one_changes_nothing() -> None:
    torch.manual_seed(0)
    config = make().config
    torch.manual_seed(0)
    untouched = SmhtForCausalLM(config)
    assert all(torch.equal(a, b) for a, b in zip(make().parameters(), untouched.parameters(), strict=True))
    groups = parameter_groups(untouched, RATE, DECAY)
    assert [(group["lr"], group["weight_decay"]) for group in groups] == [(RATE, DECAY), (RATE, 0.0)]


def test_frozen_weights_are_left_out() -> None:
    model = make()
    model.lm_head.weight.requires_grad_(False)
    assert all(weight is not model.lm_head.weight for weight in rates(model))


def test_the_default_rate_is_the_same_for_every_width_and_number_of_heads() -> None:
    task = LanguageModelling()
    configs = [make(hidden_size=width, num_attention_heads=heads).config for width, heads in ((64, 1), (256, 8))]
    assert len({default_learning_rate(task, config, MUP) for config in configs}) == 1
    for config in configs:
        assert default_learning_rate(task, config, STANDARD) == task.default_learning_rate(config)


def test_what_is_refused() -> None:
    with refused("initializer_range = 0.02", "leave one of them out"):
        check_parametrisation(MUP, SmhtConfig(initializer_range=0.02))
    check_parametrisation(STANDARD, SmhtConfig(initializer_range=0.02))
    with refused("'mup' is for models of smht, not for Linear"):
        parameter_groups(nn.Linear(2, 2), RATE, DECAY, MUP)
