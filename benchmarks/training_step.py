"""Tokens a second of a training step, and its peak memory: split with kernels, by the reference, dense twin, GPT-2.

A step is that of `smht train`: a batch as its task makes it, forward, loss, backward, gradient norm, AdamW, in
float32. The models are the preset that `smht train` begins with, its dense twin, and Hugging Face's GPT-2 of the same
width, depth, heads, context and vocabulary, without dropout as the others. Token ids are drawn at random, which costs
what text costs. One process, models in turns, ratios of medians. The larger models have the sizes of GPT-2 small;
those whose step takes more than ten seconds are left out.

Peak memory is the resident memory that steps add to a process that has the model and its batch, each in a process of
its own: the kernels' working memory does not come from PyTorch's allocator, so PyTorch cannot count it. Linux alone
tells it.

The limit is the larger of two times: multiplications at the speed of the fastest matrix product measured here, and
the bytes of weights, gradients and optimizer state at the speed of a large copy.

    python benchmarks/training_step.py [--rounds 30] [--threads 2] [--size smht-small] [--json]
"""

import argparse
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from measure import alternate, copy_bandwidth, peak, timing_parser
from reporting import Figure, report
from torch import nn
from transformers import GPT2Config, GPT2LMHeadModel

from smht import ops
from smht.inspection.accounting import account
from smht.models import SmhtConfig, SmhtForCausalLM, dense_twin
from smht.models.presets import preset_config
from smht.tasks.language_modelling import LanguageModelling
from smht.tasks.token_stream import TokenStream, TrainingWindows, collate
from smht.tokenization.bpe import DEFAULT_VOCAB_SIZE

GOALS = {"the reference": ">= 1.5", "GPT-2": ">= 3"}
MEMORY_GOAL = "<= 1"
_LARGE_ROUNDS, _LONGEST_STEP = 3, 10.0
_MEMORY_STEPS = 3
_RESET_PEAK = "5"
"""What proc(5) wants to hear to begin the peak of resident memory anew."""
_SHARED_ARGUMENTS = ("input_ids", "labels", "shift_labels", "use_cache")
"""What of a batch is for any causal language model of Hugging Face's."""


def demo_config() -> SmhtConfig:
    """The model that `smht train` trains unless told otherwise, with the default tokenizer's vocabulary."""
    return preset_config(LanguageModelling.preset, vocab_size=DEFAULT_VOCAB_SIZE)


def large_config() -> SmhtConfig:
    """The demo's architecture in the sizes of GPT-2 small."""
    sizes = {"hidden_size": 768, "num_hidden_layers": 12, "num_attention_heads": 12}
    return preset_config(LanguageModelling.preset, vocab_size=DEFAULT_VOCAB_SIZE, **sizes)


SIZES: dict[str, Callable[[], SmhtConfig]] = {"smht-small": demo_config, "D=768, 12 layers": large_config}


def gpt2_config(config: SmhtConfig) -> GPT2Config:
    """GPT-2 of the same sizes, as Hugging Face has it but for dropout."""
    return GPT2Config(
        vocab_size=config.vocab_size,
        n_positions=config.max_position_embeddings,
        n_embd=config.hidden_size,
        n_layer=config.num_hidden_layers,
        n_head=config.num_attention_heads,
        resid_pdrop=0.0,
        embd_pdrop=0.0,
        attn_pdrop=0.0,
        bos_token_id=None,
        eos_token_id=None,
    )


@dataclass
class Contestant:
    """A model in training."""

    model: nn.Module
    backend: str
    batch: dict[str, Any]

    def __post_init__(self) -> None:
        self.model.train()
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-4, fused=True)

    def step(self) -> float:
        """One step, as `smht train` does it; returns the loss."""
        ops.set_backend(self.backend)
        loss = self.model(**self.batch).loss
        loss.backward()
        nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        self.optimizer.step()
        self.optimizer.zero_grad()
        return loss.item()


def make_batch(config: SmhtConfig) -> dict[str, Any]:
    """As many windows of random tokens as `smht train` takes."""
    context = config.max_position_embeddings
    size = LanguageModelling().default_batch_size(context)
    ids = np.random.default_rng(0).integers(0, config.vocab_size, (size + 1) * context, np.uint16)
    windows = TrainingWindows(TokenStream(ids, len(ids)), context, seed=0, length=size)
    return collate([windows[i] for i in range(size)])


CONTESTANTS = ("kernels", "the reference", "the dense twin", "GPT-2")


def make_contestant(name: str, config: SmhtConfig) -> Contestant:
    """The model called `name` in the sizes of `config`."""
    torch.manual_seed(0)
    batch = make_batch(config)
    if name == "GPT-2":
        model = GPT2LMHeadModel(gpt2_config(config))
        # Hugging Face guesses it from the class's name, fails at this one, and says so before it takes this.
        model.loss_type = "ForCausalLM"
        return Contestant(model, "reference", {argument: batch[argument] for argument in _SHARED_ARGUMENTS})
    model = SmhtForCausalLM(dense_twin(config) if name == "the dense twin" else config)
    return Contestant(model, "cpu" if name == "kernels" else "reference", batch)


def multiplications(config: SmhtConfig) -> float:
    """Of a step, a token; causal attention has half of its pairs.

    Backward has twice the products of weights, and five of pairs for two, since scores are computed again.
    """
    costs = account(config)
    assert costs.causal_attention is not None
    by_weights = costs.total.multiply_adds - costs.part("attention scores and mixing").costs.multiply_adds
    return 3 * by_weights + 3.5 * costs.causal_attention


def bytes_moved(config: SmhtConfig) -> float:
    """Of a step: weights are read, gradients written; AdamW reads both and two moments and writes all but gradients."""
    return 4 * 9 * account(config).total.parameters


def speed_figures(size: str, config: SmhtConfig, names: tuple[str, ...], rounds: int) -> Iterator[Figure]:
    """How fast each of `names` is, `kernels` first among them, and ratios to it."""
    contestants = {name: make_contestant(name, config) for name in names}
    slow = {name for name, contestant in contestants.items() if _seconds(contestant.step) > _LONGEST_STEP}
    contestants = {name: contestant for name, contestant in contestants.items() if name not in slow}
    taken = dict(zip(contestants, alternate([each.step for each in contestants.values()], rounds), strict=True))
    kernels = taken["kernels"]
    tokens = contestants["kernels"].batch["input_ids"].numel()
    least = max(
        tokens * multiplications(config) / peak(torch.float32, rounds),
        bytes_moved(config) / copy_bandwidth(rounds),
    )
    for name, seconds in taken.items():
        yield Figure(f"{size}, {name}", tokens / seconds.median, "tokens/s")
    for name in list(taken)[1:]:
        goal = GOALS.get(name) if config.hidden_size == demo_config().hidden_size else None
        yield Figure(f"{size}, against {name}", taken[name].median / kernels.median, "times as fast", goal)
    saved = multiplications(dense_twin(config)) / multiplications(config)
    yield Figure(f"{size}, multiplications of the dense twin", saved, "times as many")
    yield Figure(f"{size}, share of the limit", least / kernels.shortest)


def _seconds(action: Callable[[], object]) -> float:
    started = time.perf_counter()
    action()
    return time.perf_counter() - started


def added_memory(name: str, config: SmhtConfig) -> int:
    """Bytes of resident memory that steps add to this process at their peak."""
    contestant = make_contestant(name, config)
    # Not ru_maxrss: a process begins with that of the process that started it.
    Path("/proc/self/clear_refs").write_text(_RESET_PEAK)
    before = _resident_bytes("VmRSS")
    for _ in range(_MEMORY_STEPS):
        contestant.step()
    return _resident_bytes("VmHWM") - before


def _resident_bytes(field: str) -> int:
    status = Path("/proc/self/status").read_text()
    return 1024 * int(status.split(f"{field}:")[1].split()[0])


def memory_figures(size: str, threads: int) -> Iterator[Figure]:
    """Kernels and reference, each in a fresh process."""
    if sys.platform != "linux":
        return
    added = {}
    for name in CONTESTANTS[:2]:
        command = [sys.executable, __file__, "--threads", str(threads), "--memory-of", name, "--size", size]
        added[name] = int(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
        yield Figure(f"{size}, peak memory of a step, {name}", added[name] / 1e6, "MB")
    ratio = added["kernels"] / added["the reference"]
    yield Figure(f"{size}, peak memory, kernels ÷ reference", ratio, "", MEMORY_GOAL)


def main() -> None:
    arguments = timing_parser(__doc__, rounds=30)
    arguments.add_argument("--memory-of", choices=CONTESTANTS, help=argparse.SUPPRESS)
    arguments.add_argument("--size", choices=SIZES, help="only this one")
    given = arguments.parse_args()
    torch.set_num_threads(given.threads)
    if given.memory_of:
        print(added_memory(given.memory_of, SIZES[given.size]()))
        return
    figures = []
    for size, make_config in SIZES.items():
        if given.size not in (None, size):
            continue
        rounds = given.rounds if size == "smht-small" else min(given.rounds, _LARGE_ROUNDS)
        figures += [*speed_figures(size, make_config(), CONTESTANTS, rounds), *memory_figures(size, given.threads)]
    report(figures, given.json)


if __name__ == "__main__":
    main()
