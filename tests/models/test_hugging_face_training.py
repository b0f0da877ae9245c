"""Training by transformers: Trainer, gradient checkpointing, a vocabulary that changes."""

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from transformers import DataCollatorForLanguageModeling, Trainer, TrainingArguments

from helpers.hugging_face import ARCHITECTURES, enable_gradient_checkpointing, random_tokens, tiny_model
from smht import SmhtForCausalLM
from smht.tokenization import BOS_ID, EOS_ID, PAD_ID, build_tokenizer

every_architecture = pytest.mark.parametrize("architecture", ARCHITECTURES)
silent = pytest.mark.usefixtures("silent_transformers")

LINES = ["for x in range(3):", "    print(x)", "if y:", "    return y + 1", "else:", "    raise ValueError"] * 4


def make_trainer(model: SmhtForCausalLM, folder: Path, **changes: Any) -> Trainer:
    """Learns a few lines of text by heart, as bytes, padded to the longest of a batch."""
    tokenizer = build_tokenizer("byte", None)
    options: dict[str, Any] = {
        "output_dir": str(folder),
        "max_steps": 12,
        "per_device_train_batch_size": 4,
        "learning_rate": 0.02,
        "logging_steps": 1,
        "save_steps": 4,
        "report_to": "none",
        "use_cpu": True,
        "dataloader_pin_memory": False,
        "disable_tqdm": True,
    }
    return Trainer(
        model=model,
        args=TrainingArguments(**{**options, **changes}),
        train_dataset=[tokenizer(line) for line in LINES],  # pyright: ignore[reportArgumentType]
        data_collator=DataCollatorForLanguageModeling(tokenizer, mlm=False),
        processing_class=tokenizer,
    )


def byte_model(architecture: str = "head-norm") -> SmhtForCausalLM:
    special = {"bos_token_id": BOS_ID, "eos_token_id": EOS_ID, "pad_token_id": PAD_ID}
    return tiny_model(architecture, vocab_size=259, hidden_dropout=0.1, attention_dropout=0.1, **special)


def same_parameters(ours: nn.Module, theirs: nn.Module) -> bool:
    return all(map(torch.equal, ours.state_dict().values(), theirs.state_dict().values()))


@silent
@every_architecture
def test_trainer_learns_and_its_checkpoint_loads(architecture: str, tmp_path: Path) -> None:
    trainer = make_trainer(byte_model(architecture), tmp_path, save_steps=12)
    trainer.train()
    losses = [entry["loss"] for entry in trainer.state.log_history if "loss" in entry]
    assert len(losses) == 12
    assert sum(losses[-3:]) < 0.8 * sum(losses[:3])
    loaded = SmhtForCausalLM.from_pretrained(tmp_path / "checkpoint-12")
    assert same_parameters(loaded, trainer.model)


@silent
def test_trainer_resumes_bit_for_bit(tmp_path: Path) -> None:
    whole = make_trainer(byte_model(), tmp_path / "whole")
    whole.train()
    resumed = make_trainer(byte_model(), tmp_path / "resumed")
    resumed.train(resume_from_checkpoint=str(tmp_path / "whole" / "checkpoint-4"))
    assert resumed.state.global_step == 12
    assert same_parameters(resumed.model, whole.model)


@every_architecture
@pytest.mark.parametrize("options", [{}, {"use_reentrant": False}, {"use_reentrant": True}])
def test_gradient_checkpointing_changes_no_gradient(architecture: str, options: dict[str, Any]) -> None:
    results = []
    for checkpointing in (False, True):
        model = tiny_model(architecture, hidden_dropout=0.2, attention_dropout=0.2, use_cache=False).train()
        if checkpointing:
            enable_gradient_checkpointing(model, **options)
        calls = []
        model.model.layers[0].mlp.register_forward_hook(lambda *_, calls=calls: calls.append(None))
        torch.manual_seed(0)
        loss = model(random_tokens(3, 9), labels=random_tokens(3, 9)).loss
        loss.backward()
        assert len(calls) == 1 + checkpointing
        results.append([loss, *(parameter.grad for parameter in model.parameters())])
    for plain, checkpointed in zip(*results, strict=True):
        assert torch.equal(checkpointed, plain)


@every_architecture
@pytest.mark.parametrize("tied", [False, True])
@pytest.mark.parametrize("vocab_size", [20, 50])
def test_vocabulary_can_grow_and_shrink(architecture: str, tied: bool, vocab_size: int, tmp_path: Path) -> None:
    model = tiny_model(architecture, tie_word_embeddings=tied)
    input_ids = random_tokens() % 20
    with torch.no_grad():
        before = model(input_ids).logits
        model.resize_token_embeddings(vocab_size)
        after = model(input_ids).logits
    kept = min(vocab_size, before.shape[-1])
    assert after.shape[-1] == model.config.vocab_size == vocab_size
    assert torch.equal(after[..., :kept], before[..., :kept])
    assert (model.lm_head.weight is model.model.embed_tokens.weight) == tied
    assert model(torch.full_like(input_ids, vocab_size - 1), labels=input_ids).loss.isfinite()
    model.save_pretrained(tmp_path)
    loaded = SmhtForCausalLM.from_pretrained(tmp_path)
    with torch.no_grad():
        assert torch.equal(loaded(input_ids).logits, after)


@silent
def test_frozen_parameters_get_no_gradient() -> None:
    model = tiny_model("split").train()
    model.model.requires_grad_(False)
    model(random_tokens(), labels=random_tokens()).loss.backward()
    assert {name for name, parameter in model.named_parameters() if parameter.grad is not None} == {"lm_head.weight"}


@silent
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_autocast_trains_in_half_precision(dtype: torch.dtype) -> None:
    model = tiny_model("head-norm").train()
    with torch.autocast("cpu", dtype):
        half = model(random_tokens(), labels=random_tokens())
    half.loss.backward()
    single = model(random_tokens(), labels=random_tokens())
    assert half.logits.dtype == dtype
    assert (half.loss - single.loss).abs() < 0.1
    assert all(parameter.grad.dtype == torch.float32 for parameter in model.parameters())
