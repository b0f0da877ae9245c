"""Numbers from Indonesian to Swedish: a split Transformer, its dense twin and an LSTM with attention.

All three see the same pairs in the same order, in batches of the same size, for the same time; the LSTM has as many
parameters as the split model. The pairs are the numbers from 0 to 9,999, a random tenth held out.

    python benchmarks/translation.py [--seconds 300] [--pairs numbers:id-sv] [--only split] [--json]
"""

from typing import Any

import torch
from reporting import Figure, parser, report

from smht.comparison.loop import Recipe, train
from smht.comparison.lstm import lstm_of_size
from smht.models import SmhtConfig, SmhtForSeq2SeqLM, dense_twin, preset_config
from smht.tasks.task import DataRequest
from smht.tasks.translation import EncodedPairs, Translation
from smht.tokenization import BOS_ID, EOS_ID, PAD_ID, build_tokenizer

GOAL_EXACT, GOAL_SECONDS = 0.99, 600
IDS = {"bos_token_id": BOS_ID, "eos_token_id": EOS_ID, "pad_token_id": PAD_ID}
LSTM_LAYERS = 2
# The best of a few tried for each, on these pairs.
LEARNING_RATES = {"split": 3e-3, "dense": 1e-3, "LSTM": 3e-3}


def make_models(vocab_size: int) -> dict[str, Any]:
    """The three, with the same first random numbers."""
    config = preset_config(Translation.preset, vocab_size=vocab_size, **IDS)
    split = _seeded(config)
    size = split.num_parameters()
    torch.manual_seed(0)
    return {
        "split": split,
        "dense": _seeded(dense_twin(config)),
        "LSTM": lstm_of_size(size, vocab_size, LSTM_LAYERS, **IDS),
    }


def _seeded(config: SmhtConfig) -> SmhtForSeq2SeqLM:
    torch.manual_seed(0)
    return SmhtForSeq2SeqLM(config)


def measure(name: str, model: Any, examples: EncodedPairs, seconds: float) -> list[Figure]:
    """Train one model and translate everything held out."""
    recipe = Recipe(LEARNING_RATES[name], batch_size=64, seconds=seconds)
    trained = train(model, examples, recipe)
    score = examples.score(model, is_final=True)
    is_ours = name == "split"
    return [
        Figure(f"{name}: exact match", score.metrics["exact_match"], "", f">= {GOAL_EXACT}" if is_ours else None),
        Figure(f"{name}: BLEU", score.metrics["bleu"]),
        Figure(f"{name}: loss", score.loss, "nats/target token"),
        Figure(f"{name}: training time", trained.seconds, "s", f"<= {GOAL_SECONDS}" if is_ours else None),
        Figure(f"{name}: steps", trained.steps),
        Figure(f"{name}: parameters", sum(weight.numel() for weight in model.parameters())),
    ]


def main() -> None:
    arguments = parser(__doc__)
    arguments.add_argument("--seconds", type=float, default=300)
    arguments.add_argument("--pairs", default="numbers:id-sv")
    arguments.add_argument("--only", choices=sorted(LEARNING_RATES))
    chosen = arguments.parse_args()
    data = Translation().read(DataRequest((chosen.pairs,)))
    tokenizer = build_tokenizer(Translation.tokenizer, data.texts("strict"))
    context = preset_config(Translation.preset).max_position_embeddings
    examples = data.encode(tokenizer, context, "strict")
    figures: list[Figure] = []
    for name, model in make_models(len(tokenizer)).items():
        if chosen.only in (None, name):
            figures += measure(name, model, examples, chosen.seconds)
    report(figures, chosen.json)


if __name__ == "__main__":
    main()
