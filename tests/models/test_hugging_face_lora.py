"""LoRA by PEFT: on the three-dimensional weights as parameters, on dense layers as modules."""

from pathlib import Path
from typing import Any

import pytest
import torch
from peft import LoraConfig, PeftModel, get_peft_model
from torch import Tensor, nn

from helpers.hugging_face import random_tokens, tiny_model
from smht import SmhtForCausalLM

pytestmark = [
    pytest.mark.usefixtures("silent_transformers"),
    pytest.mark.filterwarnings("ignore:`is_gradient_checkpointing` is deprecated:FutureWarning"),
    pytest.mark.filterwarnings("ignore:Setting `save_embedding_layers`:UserWarning"),
]

SPLIT_WEIGHTS = {"target_modules": [], "target_parameters": ["self_attn.q_proj.weight", "mlp.up_proj.weight"]}
CASES = {
    "split": SPLIT_WEIGHTS,
    "shuffle": {"target_modules": [], "target_parameters": ["layers.1.self_attn.v_proj.weight"]},
    "head-norm": {**SPLIT_WEIGHTS, "target_modules": ["lm_head"]},
    "dense": {"target_modules": ["q_proj", "v_proj", "down_proj", "lm_head"]},
}


def adapted_model(architecture: str) -> PeftModel:
    base = tiny_model(architecture, tie_word_embeddings=False)
    torch.manual_seed(0)
    return get_peft_model(base, LoraConfig(r=2, lora_alpha=8, **CASES[architecture]))


def train(model: nn.Module, steps: int = 6) -> list[float]:
    trainable = [parameter for parameter in model.parameters() if parameter.requires_grad]
    optimizer = torch.optim.AdamW(trainable, lr=0.05)
    losses: list[float] = []
    for _ in range(steps):
        loss = model(input_ids=random_tokens(), labels=random_tokens()).loss
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


@torch.no_grad()
def logits(model: nn.Module) -> Tensor:
    return model(input_ids=random_tokens()).logits


@pytest.mark.parametrize("architecture", CASES)
def test_adapter_alone_learns_and_the_rest_stays(architecture: str) -> None:
    untouched = logits(tiny_model(architecture, tie_word_embeddings=False))
    adapted = adapted_model(architecture)
    assert torch.equal(logits(adapted), untouched)
    before = {name: parameter.detach().clone() for name, parameter in adapted.named_parameters()}
    losses = train(adapted)
    assert losses[-1] < 0.9 * losses[0]
    for name, parameter in adapted.named_parameters():
        is_adapter = "lora_" in name
        assert (parameter.grad is not None) == parameter.requires_grad == is_adapter, name
        assert torch.equal(parameter, before[name]) != is_adapter, name
    with adapted.disable_adapter():
        assert torch.equal(logits(adapted), untouched)


@pytest.mark.parametrize("architecture", CASES)
def test_adapter_is_saved_loaded_and_merged(architecture: str, tmp_path: Path) -> None:
    adapted = adapted_model(architecture)
    train(adapted)
    wanted = logits(adapted)
    adapted.save_pretrained(tmp_path)
    loaded: Any = PeftModel.from_pretrained(tiny_model(architecture, tie_word_embeddings=False), tmp_path)
    assert torch.equal(logits(loaded), wanted)
    text = loaded.generate(input_ids=random_tokens(), do_sample=False, max_new_tokens=5)
    merged = loaded.merge_and_unload()
    assert type(merged) is SmhtForCausalLM
    assert merged.state_dict().keys() == tiny_model(architecture, tie_word_embeddings=False).state_dict().keys()
    torch.testing.assert_close(logits(merged), wanted, rtol=1e-4, atol=1e-4)
    assert torch.equal(merged.generate(random_tokens(), do_sample=False, max_new_tokens=5), text)
