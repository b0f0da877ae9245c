import pytest
import torch
from torch import Tensor, nn

from smht import SmhtConfig, SmhtForCausalLM, SmhtModel
from smht.layers import ChannelShuffle, SplitLinear, shuffle_order

WIDTH, HIDDEN_WIDTH, HEADS = 64, 256, 4


def make(**fields) -> SmhtForCausalLM:
    torch.manual_seed(0)
    return SmhtForCausalLM(
        SmhtConfig(
            vocab_size=300,
            hidden_size=WIDTH,
            intermediate_size=HIDDEN_WIDTH,
            num_attention_heads=HEADS,
            num_hidden_layers=2,
            max_position_embeddings=300,
            **fields,
        )
    )


def is_normal(weight: Tensor, deviation: float) -> bool:
    """Whether the weights look drawn from N(0, deviation²), within five standard errors."""
    values = weight.detach().flatten() / deviation
    return (
        abs(values.mean()) < 5 / len(values) ** 0.5
        and abs(values.square().mean() - 1) < 5 * (2 / len(values)) ** 0.5
        # The fourth moment is 3 where a uniform distribution has 1.8.
        and abs(values.pow(4).mean() - 3) < 5 * (96 / len(values)) ** 0.5
    )


@pytest.mark.parametrize("split", [("qkv", "output", "feed_forward"), ("output",), ()], ids=str)
def test_projections_are_normal_by_the_inputs_that_an_output_sums(split: tuple[str, ...]) -> None:
    model = make(split=split)
    for block in model.model.layers:
        attention, mlp = block.self_attn, block.mlp
        for projection, inputs, part in (
            (attention.q_proj, WIDTH, "qkv"),
            (attention.k_proj, WIDTH, "qkv"),
            (attention.v_proj, WIDTH, "qkv"),
            (attention.o_proj, WIDTH, "output"),
            (mlp.up_proj, WIDTH, "feed_forward"),
            (mlp.down_proj, HIDDEN_WIDTH, "feed_forward"),
        ):
            fan_in = inputs // HEADS if part in split else inputs
            # Two blocks of two sub-layers add up in the residual stream.
            shrink = 4**-0.5 if projection in (attention.o_proj, mlp.down_proj) else 1
            assert is_normal(projection.weight, shrink * (3 * fan_in) ** -0.5)
    for table in (model.model.embed_tokens, model.model.embed_positions):
        assert is_normal(table.weight, WIDTH**-0.5)
    assert is_normal(model.lm_head.weight, (3 * WIDTH) ** -0.5)


def test_a_named_deviation_holds_everywhere() -> None:
    model = make(initializer_range=0.02, split=("qkv", "output"))
    for part in model.modules():
        if isinstance(part, SplitLinear | nn.Linear | nn.Embedding):
            assert is_normal(part.weight, 0.02)


@pytest.mark.parametrize("norm_scope", ["model", "head"])
def test_norms_start_as_identity_and_biases_at_zero(norm_scope: str) -> None:
    model = make(projection_bias=True, norm_scope=norm_scope)
    for name, parameter in model.named_parameters():
        if "norm" in name and name.endswith("weight"):
            assert (parameter == 1).all(), name
        elif name.endswith("bias"):
            assert (parameter == 0).all(), name


def test_the_same_seed_draws_the_same_model() -> None:
    first, second = make(), make()
    for ours, theirs in zip(first.parameters(), second.parameters(), strict=True):
        assert torch.equal(ours, theirs)


def test_channel_orders_are_right_after_loading(tmp_path) -> None:
    make(mixing="shuffle").save_pretrained(tmp_path)
    shuffles = [
        part for part in SmhtForCausalLM.from_pretrained(tmp_path).modules() if isinstance(part, ChannelShuffle)
    ]
    assert shuffles
    for shuffle in shuffles:
        assert torch.equal(shuffle.order, shuffle_order(WIDTH, HEADS, power=1))
        assert torch.equal(shuffle.inverse, torch.argsort(shuffle.order))


def test_writers_into_the_residual_stream_shrink_by_how_many_there_are() -> None:
    torch.manual_seed(0)
    sizes = {"hidden_size": WIDTH, "num_attention_heads": HEADS, "num_hidden_layers": 2, "num_decoder_layers": 3}
    model = SmhtModel(SmhtConfig(stack="encoder_decoder", **sizes))
    fan_in = WIDTH // HEADS
    for block in model.encoder.layers:
        assert is_normal(block.self_attn.o_proj.weight, (2 * 2 * 3 * fan_in) ** -0.5)
    for block in model.decoder.layers:
        for attention in (block.self_attn, block.cross_attn):
            assert is_normal(attention.o_proj.weight, (3 * 3 * 3 * fan_in) ** -0.5)
            assert is_normal(attention.v_proj.weight, (3 * fan_in) ** -0.5)


def test_with_norms_after_the_sums_nothing_shrinks() -> None:
    for block in make(norm_placement="post").model.layers:
        assert is_normal(block.self_attn.o_proj.weight, (3 * WIDTH // HEADS) ** -0.5)
