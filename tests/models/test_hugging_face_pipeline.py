"""Tokenizer and model in one folder: AutoTokenizer and the text-generation pipeline."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer, PreTrainedTokenizerBase, pipeline

from helpers.hugging_face import tiny_model
from smht import SmhtForCausalLM
from smht.tokenization import build_tokenizer

PROMPTS = ["def f(x):", "a", "ä€ long one"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A saved byte-level model with its tokenizer."""
    path = tmp_path_factory.mktemp("model")
    tokenizer = build_tokenizer("byte", None)
    model = tiny_model(
        vocab_size=len(tokenizer),
        max_position_embeddings=64,
        bos_token_id=tokenizer.bos_token_id,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
    )
    model.save_pretrained(path)
    tokenizer.save_pretrained(path)
    return path


def continuation(model: SmhtForCausalLM, tokenizer: PreTrainedTokenizerBase, prompt: str, new_tokens: int) -> str:
    """The prompt and what the model says next, by a loop over forward passes without cache."""
    input_ids = tokenizer(prompt, return_tensors="pt")["input_ids"]
    for _ in range(new_tokens):
        with torch.no_grad():
            best = model(input_ids, use_cache=False).logits[:, -1:].argmax(-1)
        input_ids = torch.cat([input_ids, best], 1)
        if best.item() == tokenizer.eos_token_id:
            break
    return tokenizer.decode(input_ids[0], skip_special_tokens=True)


def test_pipeline_completes_prompts_alone_and_in_a_padded_batch(folder: Path) -> None:
    generator = pipeline("text-generation", model=str(folder), device="cpu")
    assert isinstance(generator.model, SmhtForCausalLM)
    wanted = [continuation(generator.model, generator.tokenizer, prompt, 12) for prompt in PROMPTS]
    options = {"max_new_tokens": 12, "do_sample": False}
    alone = [generator(prompt, **options)[0]["generated_text"] for prompt in PROMPTS]
    batch = [result[0]["generated_text"] for result in generator(PROMPTS, batch_size=3, **options)]
    assert alone == wanted
    assert batch == wanted
    assert all(text.startswith(prompt) for text, prompt in zip(alone, PROMPTS, strict=True))


def test_pipeline_gives_the_new_text_alone_and_several_samples(folder: Path) -> None:
    generator = pipeline("text-generation", model=str(folder), device="cpu")
    torch.manual_seed(0)
    samples = generator("x", max_new_tokens=8, do_sample=True, num_return_sequences=3, return_full_text=False)
    texts = [sample["generated_text"] for sample in samples]
    assert len(set(texts)) == 3 and not any(text.startswith("x") for text in texts)


def test_padding_on_the_left_changes_no_logit(folder: Path) -> None:
    model, tokenizer = AutoModelForCausalLM.from_pretrained(folder), AutoTokenizer.from_pretrained(folder)
    batch = tokenizer(PROMPTS, padding=True, return_tensors="pt")
    assert not batch["attention_mask"].all()
    with torch.no_grad():
        padded = model.double()(**batch).logits
        for row, prompt in enumerate(PROMPTS):
            alone = model(**tokenizer(prompt, return_tensors="pt")).logits[0]
            torch.testing.assert_close(padded[row, -len(alone) :], alone, rtol=0, atol=1e-12)


@pytest.mark.slow
def test_pipeline_works_where_smht_was_never_imported(folder: Path, tmp_path: Path) -> None:
    code = (
        "from transformers import pipeline\n"
        f"generator = pipeline('text-generation', model={str(folder)!r}, trust_remote_code=True, device='cpu')\n"
        f"print(repr(generator({PROMPTS[0]!r}, max_new_tokens=12, do_sample=False)[0]['generated_text']))\n"
    )
    environment = {**os.environ, "HF_HOME": str(tmp_path), "HF_HUB_OFFLINE": "1"}
    result = subprocess.run(
        [sys.executable, "-W", "error", "-c", code], env=environment, capture_output=True, text=True
    )
    assert result.returncode == 0, result.stderr
    model, tokenizer = AutoModelForCausalLM.from_pretrained(folder), AutoTokenizer.from_pretrained(folder)
    assert result.stdout.strip() == repr(continuation(model, tokenizer, PROMPTS[0], 12))
