"""Seconds of training until nanoGPT's loss: 1.88 nats on held-out characters of tinyshakespeare, 64 tokens of context.

nanoGPT's published recipe for a laptop's processor, as an ordinary PyTorch model, beside a split model, the split one's
dense twin, and a dense model of half the width, which has as many parameters as the split one; rates and lengths of the
three were tuned alike (docs/log.md). What the dense ones gain is tuning's and that of being small; the rest is
splitting's. All are trained by one loop in one process, always the one that has used the least time, and evaluated on
all of the held-out text after each fortieth of their steps, or on a part of it while that is far from the loss;
evaluations do not count. A model that ends above 1.88 counts with all of its time.

    python benchmarks/time_to_loss.py tinyshakespeare.txt [--seeds 1] [--threads 2] [--json]
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from statistics import median
from typing import Any

import torch
from measure import timing_parser
from nanogpt import BATCH_SIZE, CONTEXT, LEARNING_RATE, PUBLISHED_LOSS, STEPS, NanoGPT
from reporting import Figure, report
from torch import nn
from transformers.utils import logging

from smht import ops
from smht.comparison.loop import Recipe, Training
from smht.models import SmhtConfig, SmhtForCausalLM, dense_twin
from smht.tasks.language_modelling import LanguageModelling
from smht.tasks.task import Examples
from smht.training.preparation import data_request, make_tokenizer
from smht.training.request import TrainRequest

GOAL = ">= 4"
POINTS = 40
GLIMPSE, MARGIN = 256, 0.1
"""Windows that tell whether a loss is near, and how near."""
BASELINE = "nanoGPT's recipe"


@dataclass(frozen=True)
class Contestant:
    """What is trained: a function from the size of the vocabulary to a model, and how; the seed is filled in."""

    make: Callable[[int], nn.Module]
    recipe: Recipe


def split_config(vocab_size: int, width: int = 128) -> SmhtConfig:
    """The split model."""
    return SmhtConfig(
        vocab_size=vocab_size,
        hidden_size=width,
        num_hidden_layers=4,
        num_attention_heads=4,
        intermediate_size=4 * width,
        max_position_embeddings=CONTEXT,
        position_embedding="rotary",
        mixing="shuffle",
        tie_word_embeddings=True,
    )


CONTESTANTS = {
    BASELINE: Contestant(NanoGPT, Recipe(LEARNING_RATE, BATCH_SIZE, steps=STEPS)),
    "split": Contestant(lambda size: SmhtForCausalLM(split_config(size)), Recipe(16e-3, BATCH_SIZE, steps=900)),
    "its dense twin": Contestant(
        lambda size: SmhtForCausalLM(dense_twin(split_config(size))), Recipe(8e-3, BATCH_SIZE, steps=900)
    ),
    "a dense model as small": Contestant(
        lambda size: SmhtForCausalLM(dense_twin(split_config(size, width=64))), Recipe(7e-3, BATCH_SIZE, steps=900)
    ),
}


@dataclass
class Racer:
    """A contestant under way.

    Attributes:
        name: of the contestant.
        training: its model and where it is.
        examples: the text.
        losses: of validation, at each point.
    """

    name: str
    training: Training
    examples: Examples
    losses: list[float] = field(default_factory=list)

    @property
    def is_over(self) -> bool:
        """Whether it has reached the loss, or the end of its steps."""
        return self.training.done >= 1 or self.has_arrived

    @property
    def has_arrived(self) -> bool:
        """Whether it has reached the loss."""
        return bool(self.losses) and self.losses[-1] <= PUBLISHED_LOSS

    def go_on(self) -> None:
        """Train up to the next point, and evaluate there."""
        point = (len(self.losses) + 1) / POINTS
        while self.training.done < point:
            self.training.step()
        glimpse = self.examples.score(self.training.model, GLIMPSE).loss
        is_near = glimpse <= PUBLISHED_LOSS + MARGIN or self.training.done >= 1
        self.losses.append(self.examples.score(self.training.model).loss if is_near else glimpse)


def read(text: Path) -> tuple[Examples, int]:
    """The characters, and how many kinds there are."""
    request, task = TrainRequest(texts=(str(text),), tokenizer="char"), LanguageModelling()
    data = task.read(data_request(request))
    tokenizer = make_tokenizer(request, task, data)
    return data.encode(tokenizer, CONTEXT, request.errors), len(tokenizer)


def race(examples: Examples, vocab_size: int, seed: int) -> list[Racer]:
    """Train all of them from one seed, in turns."""
    racers = []
    for name, contestant in CONTESTANTS.items():
        torch.manual_seed(seed)
        model = contestant.make(vocab_size).train()
        racers.append(Racer(name, Training(model, examples, replace(contestant.recipe, seed=seed)), examples))
    while under_way := [racer for racer in racers if not racer.is_over]:
        min(under_way, key=lambda racer: racer.training.seconds).go_on()
    return racers


def figures_of(races: list[list[Racer]]) -> Iterator[Figure]:
    """Medians over seeds."""
    by_name = {name: [racer for racers in races for racer in racers if racer.name == name] for name in CONTESTANTS}
    seconds = {name: median(racer.training.seconds for racer in racers) for name, racers in by_name.items()}
    for name, racers in by_name.items():
        trainings = [racer.training for racer in racers]
        yield Figure(f"{name}: arrived at {PUBLISHED_LOSS} nats, of {len(racers)}", sum(r.has_arrived for r in racers))
        yield Figure(f"{name}: training time", seconds[name], "s")
        yield Figure(f"{name}: a step", median(1e3 * each.seconds / each.steps for each in trainings), "ms")
        yield Figure(f"{name}: tokens", median(each.steps * each.recipe.batch_size * CONTEXT for each in trainings))
        yield Figure(f"{name}: loss there", median(racer.losses[-1] for racer in racers), "nats")
        yield Figure(f"{name}: parameters", sum(weight.numel() for weight in trainings[0].model.parameters()))
    for name in list(by_name)[1:]:
        arrived = all(racer.has_arrived for racer in by_name[name])
        ratio = seconds[BASELINE] / seconds[name] if arrived else 0.0
        yield Figure(f"{name}, against {BASELINE}", ratio, "times as fast", GOAL if name == "split" else None)


def main() -> None:
    arguments = timing_parser(__doc__, rounds=1)
    arguments.add_argument("text", type=Path)
    arguments.add_argument("--seeds", type=int, default=1)
    given: Any = arguments.parse_args()
    logging.set_verbosity_error()
    torch.set_num_threads(given.threads)
    ops.set_backend("auto")
    examples, vocab_size = read(given.text)
    races = [race(examples, vocab_size, seed) for seed in range(given.seeds)]
    report(list(figures_of(races)), given.json)


if __name__ == "__main__":
    main()
