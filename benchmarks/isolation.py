"""What two shared numbers a token do to chunks that are otherwise alone (seed 000, 6.1 and 6.2).

Without mixing, chunks of a split model meet in LayerNorm's mean and variance and in the language-model head only. Four
models of one size are trained alike on characters: with a LayerNorm a head (nothing shared), with the seed's LayerNorm,
with channels dealt anew in each block, and the dense twin. Of each: the validation loss, and the share of its
sensitivity that comes from other chunks, that is the squared Frobenius norm of the Jacobian from the embeddings to the
last hidden state that lies off the diagonal of chunks (`smht.inspection.coupling`), with means and variances as they
are and held constant, before and after training, at the last tokens of windows of the text. By chance it would be
1 - 1/H.

    python benchmarks/isolation.py TEXT [--steps 600] [--texts 4] [--json]
"""

from collections.abc import Iterator
from pathlib import Path
from statistics import mean
from typing import Any

import torch
from reporting import Figure, parser, report
from torch import Tensor

from smht.comparison.loop import Recipe, train
from smht.comparison.parametrisation import base_learning_rate
from smht.inspection import coupling
from smht.models import SmhtConfig, SmhtForCausalLM, dense_twin
from smht.tasks.language_modelling import LanguageModelling, WindowedText
from smht.training.preparation import data_request, make_tokenizer
from smht.training.request import TrainRequest

CONTEXT, BATCH_SIZE, CHECKED_WINDOWS = 64, 12, 512
HEADS = 4
MODELS: dict[str, dict[str, Any]] = {
    "a LayerNorm a head": {"norm_scope": "head"},
    "one LayerNorm, as the seed": {},
    "one LayerNorm and shuffle": {"mixing": "shuffle"},
    "dense twin": {},
}


def config_of(name: str, vocab_size: int) -> SmhtConfig:
    """The architecture called `name`."""
    sizes: dict[str, Any] = {"hidden_size": 64, "num_hidden_layers": 4, "num_attention_heads": HEADS}
    common = {"vocab_size": vocab_size, "max_position_embeddings": CONTEXT, "position_embedding": "rotary"}
    config = SmhtConfig(**sizes, **common, **MODELS[name])
    return dense_twin(config) if name == "dense twin" else config


def share_between(norms: Tensor) -> float:
    """The part of a matrix of norms, squared, that lies off the diagonal."""
    squares = norms.double().square()
    return (1 - squares.diagonal().sum() / squares.sum()).item()


def shares(model: SmhtForCausalLM, texts: list[Tensor]) -> tuple[float, float]:
    """Of sensitivity to other chunks, statistics live and held; the mean over texts."""
    found = [coupling(model, text) for text in texts]
    return mean(share_between(one.live) for one in found), mean(share_between(one.held) for one in found)


def figures_of(examples: WindowedText, vocab_size: int, texts: list[Tensor], steps: int) -> Iterator[Figure]:
    """Train each, and look at it before and after."""
    for name in MODELS:
        torch.manual_seed(0)
        config = config_of(name, vocab_size)
        model = SmhtForCausalLM(config)
        before = shares(model, texts)
        train(model, examples, Recipe(base_learning_rate(config), BATCH_SIZE, steps=steps))
        after = shares(model, texts)
        yield Figure(f"{name}: validation loss", examples.score(model, CHECKED_WINDOWS).loss, "nats")
        for when, (live, held) in (("before training", before), ("after", after)):
            yield Figure(f"{name}: from other chunks, {when}, statistics live", 100 * live, "%")
            yield Figure(f"{name}: from other chunks, {when}, statistics held", 100 * held, "%")


def read(text: Path, count: int) -> tuple[WindowedText, int, list[Tensor]]:
    """The characters of a text, how many kinds there are, and so many windows of it to look at models with."""
    request, task = TrainRequest(texts=(str(text),), tokenizer="char"), LanguageModelling()
    data = task.read(data_request(request))
    tokenizer = make_tokenizer(request, task, data)
    examples = data.encode(tokenizer, CONTEXT, request.errors)
    windows = examples.dataset(1, count, count)
    return examples, len(tokenizer), [examples.collate([windows[i]])["input_ids"] for i in range(count)]


def main() -> None:
    arguments = parser(__doc__)
    arguments.add_argument("text", type=Path)
    arguments.add_argument("--steps", type=int, default=600)
    arguments.add_argument("--texts", type=int, default=4)
    given: Any = arguments.parse_args()
    report(list(figures_of(*read(given.text, given.texts), given.steps)), given.json)


if __name__ == "__main__":
    main()
