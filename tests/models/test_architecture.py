"""Seed 000, section 6: what kind of Transformer a split model is."""

import itertools
import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from helpers.layers import randomize
from helpers.tensors import assert_all_close, value_and_gradients
from smht import SmhtConfig, SmhtForCausalLM


def make(**fields: Any) -> SmhtForCausalLM:
    torch.manual_seed(0)
    defaults = {"vocab_size": 11, "hidden_size": 8, "num_hidden_layers": 2, "max_position_embeddings": 7}
    model = SmhtForCausalLM(SmhtConfig(**defaults | fields)).double().eval()
    randomize(model)
    return model


IDS = torch.tensor([[3, 1, 4, 1, 5, 9], [2, 6, 5, 3, 5, 8]])


class StandardTransformer(nn.Module):
    """A single-head pre-norm Transformer decoder made of torch.nn only."""

    def __init__(self, vocabulary: int, width: int, hidden_width: int, layers: int, positions: int) -> None:
        super().__init__()
        self.tokens = nn.Embedding(vocabulary, width)
        self.positions = nn.Embedding(positions, width)
        self.layers = nn.ModuleList(
            nn.TransformerEncoderLayer(
                width, 1, hidden_width, dropout=0.0, activation="gelu", batch_first=True, norm_first=True
            )
            for _ in range(layers)
        )
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, vocabulary, bias=False)

    def forward(self, ids: Tensor) -> Tensor:
        x = self.tokens(ids) + self.positions(torch.arange(ids.shape[1]))
        mask = nn.Transformer.generate_square_subsequent_mask(ids.shape[1], dtype=x.dtype)
        for layer in self.layers:
            x = layer(x, src_mask=mask, is_causal=True)
        return self.head(self.norm(x))


def pairs_of_parameters(ours: SmhtForCausalLM, standard: StandardTransformer) -> list[tuple[list[Tensor], Tensor]]:
    """Parameters of the one-head model beside those of the standard one; q, k and v are one matrix there."""
    pairs: list[tuple[list[Tensor], Tensor]] = [
        ([ours.model.embed_tokens.weight], standard.tokens.weight),
        ([ours.model.embed_positions.weight], standard.positions.weight),
        ([ours.model.norm.weight], standard.norm.weight),
        ([ours.model.norm.bias], standard.norm.bias),
        ([ours.lm_head.weight], standard.head.weight),
    ]
    for block, layer in zip(ours.model.layers, standard.layers, strict=True):
        attention = block.self_attn
        pairs += [
            (
                [attention.q_proj.weight, attention.k_proj.weight, attention.v_proj.weight],
                layer.self_attn.in_proj_weight,
            ),
            ([attention.o_proj.weight], layer.self_attn.out_proj.weight),
            ([block.mlp.up_proj.weight], layer.linear1.weight),
            ([block.mlp.down_proj.weight], layer.linear2.weight),
            ([block.input_layernorm.weight], layer.norm1.weight),
            ([block.input_layernorm.bias], layer.norm1.bias),
            ([block.post_attention_layernorm.weight], layer.norm2.weight),
            ([block.post_attention_layernorm.bias], layer.norm2.bias),
        ]
    return pairs


def as_standard(parts: list[Tensor]) -> Tensor:
    """One block `[1, in, out]` is a matrix of torch.nn transposed."""
    return torch.cat([part[0].T if part.dim() == 3 else part for part in parts])


def test_one_head_is_a_standard_transformer() -> None:
    """Section 6.3, for logits and for the gradient of every weight."""
    ours = make(num_attention_heads=1, intermediate_size=20)
    standard = StandardTransformer(11, 8, 20, layers=2, positions=7).double()
    with torch.no_grad():
        for parameter in standard.parameters():
            parameter.zero_()
        for parts, parameter in pairs_of_parameters(ours, standard):
            parameter.copy_(as_standard(parts))
    weighting = torch.randn(2, 6, 11, dtype=torch.float64)
    logits, expected = ours(IDS).logits, standard(IDS)
    assert_all_close([logits], [expected], tolerance=1e-12)
    (logits * weighting).sum().backward()
    (expected * weighting).sum().backward()
    for parts, parameter in pairs_of_parameters(ours, standard):
        gradients = [part.grad for part in parts]
        assert all(gradient is not None and (gradient != 0).any() for gradient in gradients)
        assert_all_close([as_standard(gradients)], [parameter.grad], tolerance=1e-12)


def scalar_gelu(value: float) -> float:
    return value * (1 + math.erf(value / math.sqrt(2))) / 2


def scalar_block(block: nn.Module, x: list[list[float]]) -> list[list[float]]:
    """Section 6.4, channel by channel in plain numbers: `x[token][channel]`."""
    weight = {name: value.flatten().tolist() for name, value in block.state_dict().items()}
    width = len(x[0])

    def normalise(row: list[float], name: str) -> list[float]:
        mean = sum(row) / width
        deviation = math.sqrt(sum((value - mean) ** 2 for value in row) / width + 1e-5)
        scale, shift = weight[f"{name}.weight"], weight[f"{name}.bias"]
        return [(value - mean) / deviation * scale[c] + shift[c] for c, value in enumerate(row)]

    wq, wk, wv, wo = (weight[f"self_attn.{name}_proj.weight"] for name in "qkvo")
    w1, w2 = weight["mlp.up_proj.weight"], weight["mlp.down_proj.weight"]
    normed = [normalise(row, "input_layernorm") for row in x]
    result = [list(row) for row in x]
    for channel, token in itertools.product(range(width), range(len(x))):
        a = wq[channel] * wk[channel]
        scores = [a * normed[token][channel] * normed[s][channel] for s in range(token + 1)]
        exponentials = [math.exp(score - max(scores)) for score in scores]
        values = [normed[s][channel] * wv[channel] for s in range(token + 1)]
        mixed = sum(e * v for e, v in zip(exponentials, values, strict=True)) / sum(exponentials)
        result[token][channel] += mixed * wo[channel]
    for row in result:
        for channel, value in enumerate(normalise(row, "post_attention_layernorm")):
            row[channel] += scalar_gelu(w1[channel] * value) * w2[channel]
    return result


def test_heads_of_one_channel_follow_the_scalar_formulas() -> None:
    model = make(num_attention_heads=8, intermediate_size=8)
    x = torch.randn(1, 6, 8, dtype=torch.float64)
    for block in model.model.layers:
        expected = torch.tensor([scalar_block(block, x[0].tolist())], dtype=torch.float64)
        assert_all_close([block(x)], [expected], tolerance=1e-12)


def detached_norm(self: nn.LayerNorm, x: Tensor) -> Tensor:
    """LayerNorm whose mean and variance pass no gradient."""
    mean, variance = x.mean(-1, keepdim=True).detach(), x.var(-1, keepdim=True, unbiased=False).detach()
    return (x - mean) / torch.sqrt(variance + self.eps) * self.weight + self.bias


def reach(model: SmhtForCausalLM, heads: int) -> Tensor:
    """`[H, H]`: the largest gradient from chunk i of the embedding to chunk j of the last hidden state."""
    embedded = model.model.embed_tokens(IDS[:1]).detach()
    jacobian = torch.autograd.functional.jacobian(
        lambda given: model.model(inputs_embeds=given).last_hidden_state, embedded, vectorize=True
    )
    assert isinstance(jacobian, Tensor)
    by_chunk = jacobian.abs().view(6, heads, -1, 6, heads, 8 // heads)
    return by_chunk.amax(dim=(0, 2, 3, 5)).T


@pytest.mark.parametrize("heads", [2, 4, 8])
def test_chunks_meet_in_the_layer_norms_only(heads: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Sections 6.1 and 6.2: with the statistics held still nothing passes from chunk to chunk."""
    model = make(num_attention_heads=heads, num_hidden_layers=3)
    assert (reach(model, heads) > 0).all()
    expected = model(IDS).logits
    monkeypatch.setattr(nn.LayerNorm, "forward", detached_norm)
    assert_all_close([model(IDS).logits], [expected])
    own = torch.eye(heads, dtype=torch.bool)
    reached = reach(model, heads)
    assert (reached[own] > 0).all()
    assert (reached[~own] == 0).all()


@pytest.mark.parametrize("heads", [2, 4])
def test_norms_by_head_keep_the_chunks_apart(heads: int) -> None:
    reached = reach(make(num_attention_heads=heads, num_hidden_layers=3, norm_scope="head"), heads)
    own = torch.eye(heads, dtype=torch.bool)
    assert (reached[own] > 0).all()
    assert (reached[~own] == 0).all()


@pytest.mark.parametrize(
    "fields",
    [{"mixing": "shuffle"}, {"split": ("output", "feed_forward")}, {"split": ("qkv", "feed_forward")}, {"split": ()}],
    ids=str,
)
def test_what_else_lets_chunks_meet(fields: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(nn.LayerNorm, "forward", detached_norm)
    assert (reach(make(num_attention_heads=2, num_hidden_layers=3, **fields), 2) > 0).all()


@pytest.mark.parametrize("mixing", ["none", "shuffle"])
def test_shuffle_spreads_one_channel_over_the_model_in_logarithmically_many_blocks(
    mixing: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(nn.LayerNorm, "forward", detached_norm)
    model = make(num_attention_heads=4, num_hidden_layers=3, mixing=mixing)
    jacobian = torch.autograd.functional.jacobian(
        lambda given: model.model(inputs_embeds=given).last_hidden_state[0, -1],
        torch.randn(1, 6, 8, dtype=torch.float64),
        vectorize=True,
    )
    assert isinstance(jacobian, Tensor)
    reached = jacobian[:, 0].abs().amax(1) > 0
    # With eight channels in pairs, three blocks reach 2³ channels; without mixing each channel reaches its pair.
    assert reached.sum(0).tolist() == [8 if mixing == "shuffle" else 2] * 8


@pytest.mark.parametrize("heads", [1, 2, 8])
def test_logits_are_the_sum_of_the_chunks_contributions(heads: int) -> None:
    """Section 6.2: logit_v = Σ_i ⟨U_v[i], z_i⟩."""
    model = make(num_attention_heads=heads)
    output = model(IDS, output_hidden_states=True)
    z = model.model(IDS).last_hidden_state
    width = 8 // heads
    contributions = [
        torch.einsum("btk,vk->btv", z[..., h * width :][..., :width], model.lm_head.weight[:, h * width :][:, :width])
        for h in range(heads)
    ]
    assert_all_close([output.logits], [torch.stack(contributions).sum(0)], tolerance=1e-12)


def test_each_chunk_is_a_narrow_transformer_of_its_own() -> None:
    """Section 6.1 with norms by head: H models of width K and one head, run side by side."""
    whole = make(num_attention_heads=4, num_hidden_layers=2, norm_scope="head", intermediate_size=12)
    embedded = torch.randn(2, 6, 8, dtype=torch.float64)
    chunks = []
    for head in range(4):
        narrow = make(hidden_size=2, num_attention_heads=1, intermediate_size=3)
        part = slice(2 * head, 2 * head + 2)
        state = {}
        for name, value in whole.state_dict().items():
            is_split = value.dim() == 3
            state[name] = value[head : head + 1] if is_split else value[..., part]
        narrow.load_state_dict(state)
        chunks.append(narrow.model(inputs_embeds=embedded[..., part]).last_hidden_state)
    assert_all_close([whole.model(inputs_embeds=embedded).last_hidden_state], [torch.cat(chunks, -1)], tolerance=1e-12)


def test_tied_embeddings_are_one_table() -> None:
    model = make(tie_word_embeddings=True)
    assert model.lm_head.weight is model.model.embed_tokens.weight
    z = model.model(IDS).last_hidden_state
    assert_all_close([model(IDS).logits], [z @ model.model.embed_tokens.weight.T], tolerance=1e-12)


ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {"gelu": F.gelu, "relu": F.relu, "silu": F.silu}


@pytest.mark.parametrize("name", ACTIVATIONS)
def test_hidden_act_and_epsilon_reach_the_blocks(name: str) -> None:
    model = make(hidden_act=name, layer_norm_eps=0.25)
    mlp = model.model.layers[0].mlp
    x = torch.randn(2, 8, dtype=torch.float64)

    def dense(given: Tensor) -> Tensor:
        return ACTIVATIONS[name](given @ mlp.up_proj.to_dense().weight.T) @ mlp.down_proj.to_dense().weight.T

    assert_all_close(value_and_gradients(mlp, x), value_and_gradients(dense, x))
    norms = [part for part in model.modules() if isinstance(part, nn.LayerNorm)]
    assert [norm.eps for norm in norms] == [0.25] * 5
