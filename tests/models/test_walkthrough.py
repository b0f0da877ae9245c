"""Seed 000, section 4: the mini model followed step by step, written out with the seed's own einsum."""

import math
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from helpers.layers import randomize
from smht import SmhtForCausalLM, preset_config

IDS = torch.tensor([[17, 52, 3, 88]])


@pytest.fixture(scope="module")
def model() -> SmhtForCausalLM:
    torch.manual_seed(0)
    config = preset_config("smht-mini", attn_implementation="eager")
    model = SmhtForCausalLM(config).double().eval()
    randomize(model)
    return model


def normalise(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """Step 3a: (x - μ) / √(σ² + ε) · γ + β, over all eight dimensions."""
    mean = x.mean(-1, keepdim=True)
    variance = ((x - mean) ** 2).mean(-1, keepdim=True)
    return (x - mean) / torch.sqrt(variance + 1e-5) * weight + bias


@pytest.fixture(scope="module")
def steps(model: SmhtForCausalLM) -> dict[str, Tensor]:
    """Every tensor of the walkthrough by the seed's number, from the weights alone."""
    weights = {name.removeprefix("model."): value.detach() for name, value in model.state_dict().items()}
    of_block = {name.removeprefix("layers.0."): value for name, value in weights.items()}
    wq, wk, wv, wo = (of_block[f"self_attn.{name}_proj.weight"] for name in "qkvo")
    w1, w2 = of_block["mlp.up_proj.weight"], of_block["mlp.down_proj.weight"]
    step: dict[str, Tensor] = {"0": IDS}
    step["1"] = weights["embed_tokens.weight"][IDS]
    step["2"] = x0 = step["1"] + weights["embed_positions.weight"][torch.arange(4)]
    step["3a"] = normalise(x0, of_block["input_layernorm.weight"], of_block["input_layernorm.bias"])
    step["3b"] = x = step["3a"].reshape(1, 4, 4, 2)
    step["3c q"] = q = torch.einsum("blhd,hde->bhle", x, wq)
    step["3c k"] = k = torch.einsum("blhd,hde->bhle", x, wk)
    step["3c v"] = v = torch.einsum("blhd,hde->bhle", x, wv)
    scores = torch.einsum("bhtd,bhsd->bhts", q, k) / math.sqrt(2)
    for row in range(4):
        scores[..., row, row + 1 :] = -math.inf
    step["3d"] = attention = torch.softmax(scores, dim=-1)
    step["3e"] = torch.einsum("bhts,bhsd->bhtd", attention, v)
    step["3f"] = step["3e"].transpose(1, 2).reshape(1, 4, 8)
    step["3g"] = torch.einsum("blhd,hde->blhe", step["3f"].reshape(1, 4, 4, 2), wo).reshape(1, 4, 8)
    step["3h"] = x1 = x0 + step["3g"]
    step["3i"] = normalise(x1, of_block["post_attention_layernorm.weight"], of_block["post_attention_layernorm.bias"])
    step["3j"] = x = step["3i"].reshape(1, 4, 4, 2)
    step["3k u"] = u = F.gelu(torch.einsum("blhd,hdg->blhg", x, w1))
    step["3k z"] = torch.einsum("blhg,hgd->blhd", u, w2)
    step["3l"] = x1 + step["3k z"].reshape(1, 4, 8)
    step["4"] = normalise(step["3l"], weights["norm.weight"], weights["norm.bias"])
    step["5"] = step["4"] @ weights["lm_head.weight"].T
    step["6"] = torch.softmax(step["5"], dim=-1)
    return step


@pytest.fixture(scope="module")
def seen(model: SmhtForCausalLM) -> dict[str, Tensor]:
    """The same tensors, taken out of the running model."""
    step: dict[str, Tensor] = {"0": IDS}
    block = model.model.layers[0]
    attention, mlp = block.self_attn, block.mlp
    handles = []

    def keep(module: torch.nn.Module, output: str | None = None, given: str | None = None) -> None:
        def hook(_: Any, inputs: tuple[Any, ...], outputs: Any) -> None:
            if given is not None:
                step[given] = inputs[0]
            if output is not None:
                step[output] = outputs

        handles.append(module.register_forward_hook(hook))

    keep(model.model.embed_tokens, "1")
    keep(block, given="2")
    keep(block.input_layernorm, "3a")
    keep(attention.q_proj, "3c q")
    keep(attention.k_proj, "3c k")
    keep(attention.v_proj, "3c v")
    keep(attention.o_proj, "3g", given="3f")
    keep(block.post_attention_layernorm, "3i", given="3h")
    keep(mlp.down_proj, "3k z", given="3k u")
    keep(block, "3l")
    keep(model.model.norm, "4")
    keep(model.lm_head, "5")
    output = model(IDS, output_attentions=True)
    for handle in handles:
        handle.remove()
    step["3d"] = output.attentions[0]
    step["3b"], step["3j"] = step["3a"].unflatten(-1, (4, 2)), step["3i"].unflatten(-1, (4, 2))
    for name in ("3c q", "3c k", "3c v"):
        step[name] = step[name].unflatten(-1, (4, 2)).transpose(1, 2)
    step["3e"] = step["3f"].unflatten(-1, (4, 2)).transpose(1, 2)
    step["3k u"], step["3k z"] = step["3k u"].unflatten(-1, (4, 4)), step["3k z"].unflatten(-1, (4, 2))
    step["6"] = output.logits.softmax(-1)
    return step


SHAPES = {
    "0": (1, 4),
    "1": (1, 4, 8),
    "2": (1, 4, 8),
    "3a": (1, 4, 8),
    "3b": (1, 4, 4, 2),
    "3c q": (1, 4, 4, 2),
    "3c k": (1, 4, 4, 2),
    "3c v": (1, 4, 4, 2),
    "3d": (1, 4, 4, 4),
    "3e": (1, 4, 4, 2),
    "3f": (1, 4, 8),
    "3g": (1, 4, 8),
    "3h": (1, 4, 8),
    "3i": (1, 4, 8),
    "3j": (1, 4, 4, 2),
    "3k u": (1, 4, 4, 4),
    "3k z": (1, 4, 4, 2),
    "3l": (1, 4, 8),
    "4": (1, 4, 8),
    "5": (1, 4, 100),
    "6": (1, 4, 100),
}
"""What the seed prints."""


@pytest.mark.parametrize("name", SHAPES)
def test_every_step_has_the_seeds_shape_and_numbers(
    seen: dict[str, Tensor], steps: dict[str, Tensor], name: str
) -> None:
    assert seen[name].shape == SHAPES[name]
    torch.testing.assert_close(seen[name], steps[name], rtol=1e-12, atol=1e-12)


def test_the_walkthrough_covers_every_step(seen: dict[str, Tensor], steps: dict[str, Tensor]) -> None:
    assert seen.keys() == steps.keys() == SHAPES.keys()


def test_row_t_of_each_heads_attention_sums_to_one_over_0_to_t(seen: dict[str, Tensor]) -> None:
    weights = seen["3d"]
    for token in range(4):
        assert (weights[..., token, token + 1 :] == 0).all()
        assert (weights[..., token, : token + 1] > 0).all()
    torch.testing.assert_close(weights.sum(-1), torch.ones(1, 4, 4, dtype=torch.float64))


def test_each_head_has_an_attention_map_of_its_own(seen: dict[str, Tensor]) -> None:
    heads = seen["3d"][0]
    for head in range(1, 4):
        assert not torch.allclose(heads[0], heads[head])


def test_the_last_position_chooses_the_next_token(model: SmhtForCausalLM, steps: dict[str, Tensor]) -> None:
    generated = model.generate(IDS, attention_mask=torch.ones_like(IDS), max_new_tokens=1, do_sample=False)
    assert generated[0, :4].tolist() == IDS[0].tolist()
    assert generated[0, 4] == steps["6"][0, 3].argmax()


def test_the_fused_model_computes_the_same_logits(model: SmhtForCausalLM, steps: dict[str, Tensor]) -> None:
    fused = SmhtForCausalLM(preset_config("smht-mini", attn_implementation="sdpa")).double().eval()
    fused.load_state_dict(model.state_dict())
    torch.testing.assert_close(fused(IDS).logits, steps["5"], rtol=1e-12, atol=1e-12)


def test_weights_have_the_seeds_shapes(model: SmhtForCausalLM) -> None:
    block = {name: tuple(weight.shape) for name, weight in model.model.layers[0].named_parameters()}
    assert block == {
        "input_layernorm.weight": (8,),
        "input_layernorm.bias": (8,),
        "self_attn.q_proj.weight": (4, 2, 2),
        "self_attn.k_proj.weight": (4, 2, 2),
        "self_attn.v_proj.weight": (4, 2, 2),
        "self_attn.o_proj.weight": (4, 2, 2),
        "post_attention_layernorm.weight": (8,),
        "post_attention_layernorm.bias": (8,),
        "mlp.up_proj.weight": (4, 2, 4),
        "mlp.down_proj.weight": (4, 4, 2),
    }
    assert model.model.embed_tokens.weight.shape == (100, 8)
    assert model.model.embed_positions.weight.shape == (16, 8)
    assert model.lm_head.weight.shape == (100, 8)
    assert model.lm_head.bias is None
