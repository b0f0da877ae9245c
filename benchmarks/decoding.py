"""Decoding, one token at a time: a split model, its dense twin and Hugging Face's GPT-2 of the same sizes, greedily.

One process, alternately, medians of tokens a second: new tokens over the time of `generate`, reading the prompt
included. GPT-2 runs with its default cache and with a static one, and the faster of the two is compared with. Sizes are
those of GPT-2 small and of the preset that `smht train` begins with, both over bytes.

The limit is the speed at which a large copy goes through memory, bytes read and bytes written, over the bytes that a
token needs: every weight of blocks and head once, and the keys and values of a cache of the mean length. What stays in
the processor's cache from one token to the next does not come from memory, so a share of the limit may exceed 1; a
model that stays there whole has no such limit.

    python benchmarks/decoding.py [--rounds 5] [--threads 2] [--size smht-small] [--new-tokens 256] [--json]
"""

import logging
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
from measure import alternate, copy_bandwidth, timing_parser
from reporting import Figure, report
from torch import Tensor, nn
from transformers import GPT2Config, GPT2LMHeadModel

from smht.models import SmhtConfig, SmhtForCausalLM, dense_twin
from smht.models.presets import preset_config
from smht.ops import BACKENDS, backend
from smht.tasks.generation import Sampling, stream_text
from smht.tasks.language_modelling import LanguageModelling
from smht.tokenization import build_tokenizer

VOCABULARY, PROMPT = 259, 32
FASTER, SHARE = ">= 8", ">= 0.5"
LARGE = "D=768, 12 layers"


def large_config(context: int) -> SmhtConfig:
    """The sizes of GPT-2 small."""
    sizes = {"hidden_size": 768, "num_hidden_layers": 12, "num_attention_heads": 12}
    return SmhtConfig(vocab_size=VOCABULARY, max_position_embeddings=context, **sizes)  # pyright: ignore


def small_config(context: int) -> SmhtConfig:
    """The model that `smht train` trains unless told otherwise."""
    return preset_config(LanguageModelling.preset, vocab_size=VOCABULARY, max_position_embeddings=context)


SIZES: dict[str, Callable[[int], SmhtConfig]] = {LARGE: large_config, "smht-small": small_config}


def gpt2(config: SmhtConfig) -> GPT2LMHeadModel:
    """Of the same sizes, without special tokens."""
    published = GPT2Config(
        vocab_size=config.vocab_size,
        n_positions=config.max_position_embeddings,
        n_embd=config.hidden_size,
        n_layer=config.num_hidden_layers,
        n_head=config.num_attention_heads,
    )
    published.bos_token_id = published.eos_token_id = None
    return GPT2LMHeadModel(published).eval()


def generation(model: Any, prompt: Tensor, new_tokens: int, chosen: str = "auto", **options: Any) -> Callable[[], None]:
    """A call of `generate` with the backend called `chosen`."""

    def generate() -> None:
        backend.set_backend(chosen)
        produced = model.generate(
            prompt, attention_mask=torch.ones_like(prompt), do_sample=False, max_new_tokens=new_tokens, **options
        )
        assert produced.shape[1] == PROMPT + new_tokens

    return generate


def streaming(model: SmhtForCausalLM, prompt: Tensor, new_tokens: int) -> Callable[[], None]:
    """The loop of `smht generate`."""
    tokenizer = build_tokenizer("byte", None)
    sampling = Sampling(temperature=0, max_new_tokens=new_tokens, min_new_tokens=new_tokens)

    def generate() -> None:
        backend.set_backend("auto")
        for _ in stream_text(model, tokenizer, prompt[0].tolist(), sampling):
            pass

    return generate


def bytes_of(*modules: nn.Module) -> int:
    """Of all weights."""
    return sum(weight.nbytes for module in modules for weight in module.parameters())


def bytes_a_token(model: SmhtForCausalLM, new_tokens: int) -> float:
    """Of the weights that a token multiplies, and of the keys and values that it reads on average."""
    norm = model.model.norm
    assert norm is not None
    cached = PROMPT + (new_tokens - 1) / 2
    numbers = 2 * model.config.num_hidden_layers * cached * model.config.hidden_size
    return bytes_of(model.model.layers, norm, model.lm_head) + 4 * numbers


def kernel_seconds(generate: Callable[[], None]) -> float:
    """How long the kernel runs in one call of `generate`."""
    functions, seconds = BACKENDS["cpu"].functions, 0.0
    kernel = functions["split_decode"]

    def timed(*arguments: Any) -> Tensor:
        nonlocal seconds
        start = time.perf_counter()
        result = kernel(*arguments)
        seconds += time.perf_counter() - start
        return result

    functions["split_decode"] = timed
    try:
        generate()
    finally:
        functions["split_decode"] = kernel
    return seconds


def measure(size: str, rounds: int, new_tokens: int) -> list[Figure]:
    """All figures of one size."""
    torch.manual_seed(0)
    config = SIZES[size](PROMPT + new_tokens)
    split, dense = SmhtForCausalLM(config).eval(), SmhtForCausalLM(dense_twin(config)).eval()
    published = gpt2(config)
    prompt = torch.randint(VOCABULARY - 3, (1, PROMPT))
    static = {"cache_implementation": "static"}
    variants: dict[str, Callable[[], Any]] = {
        "split, generate": generation(split, prompt, new_tokens),
        "split, smht generate": streaming(split, prompt, new_tokens),
        "split, block by block": generation(split, prompt, new_tokens, "reference"),
        "dense twin": generation(dense, prompt, new_tokens),
        "GPT-2": generation(published, prompt, new_tokens),
        "GPT-2, static cache": generation(published, prompt, new_tokens, **static),
    }
    seconds = alternate(list(variants.values()), rounds)
    kernel = sorted(kernel_seconds(variants["split, smht generate"]) for _ in range(rounds))[rounds // 2]
    speeds = {name: new_tokens / taken.median for name, taken in zip(variants, seconds, strict=True)}
    best = max(speed for name, speed in speeds.items() if name.startswith("GPT-2"))
    needed, bandwidth = bytes_a_token(split, new_tokens), copy_bandwidth(3 * rounds)
    figures = [Figure(name, speed, "tokens/s") for name, speed in speeds.items()]
    for name in list(variants)[:2]:
        ours = speeds[name]
        figures += [
            Figure(f"{name}, against GPT-2", ours / best, "times as fast", FASTER if size == LARGE else None),
            Figure(f"{name}, against block by block", ours / speeds["split, block by block"], "times as fast"),
            Figure(f"{name}, against the dense twin", ours / speeds["dense twin"], "times as fast"),
            Figure(f"{name}, share of the limit", ours * needed / bandwidth, "", SHARE if size == LARGE else None),
            Figure(f"{name}, a token", 1e3 / ours, "ms"),
        ]
    figures += [
        Figure("split, in the kernel", 1e3 * kernel / (new_tokens - 1), "ms"),
        Figure("weights of the split model", bytes_of(split) / 1e6, "MB"),
        Figure("weights of GPT-2", bytes_of(published) / 1e6, "MB"),
        Figure("a token reads", needed / 1e6, "MB"),
        Figure("copy", bandwidth / 1e9, "GB/s"),
        Figure("limit", bandwidth / needed, "tokens/s"),
    ]
    return [replace(figure, name=f"{size}: {figure.name}") for figure in figures]


def main() -> None:
    arguments = timing_parser(__doc__, rounds=5)
    arguments.add_argument("--size", choices=SIZES, help="one size alone")
    arguments.add_argument("--new-tokens", type=int, default=256)
    given = arguments.parse_args()
    logging.getLogger("transformers").setLevel(logging.ERROR)
    torch.set_num_threads(given.threads)
    sizes = [given.size] if given.size else list(SIZES)
    report([figure for size in sizes for figure in measure(size, given.rounds, given.new_tokens)], given.json)


if __name__ == "__main__":
    main()
