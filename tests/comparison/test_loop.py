from typing import Any

import pytest
import torch

from helpers.errors import refused
from smht.comparison.loop import Recipe, Training, rate_at, train
from smht.errors import SmhtError
from smht.models import SmhtConfig, SmhtForSequenceClassification
from smht.tasks.classification import EncodedTexts
from smht.tasks.labelled import Example, LabelledCorpus
from smht.tokenization import build_tokenizer

TEXTS = LabelledCorpus("test", (), tuple(Example(f"text {i}", "ab"[i % 2]) for i in range(8)))
EXAMPLES = EncodedTexts(TEXTS, TEXTS, TEXTS.labels, build_tokenizer("byte", None), 16)


def make() -> SmhtForSequenceClassification:
    torch.manual_seed(0)
    sizes = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "max_position_embeddings": 16}
    return SmhtForSequenceClassification(SmhtConfig(stack="encoder", num_labels=2, **sizes))


def test_it_learns_and_the_same_seed_gives_the_same_model() -> None:
    models = [make(), make()]
    found = [train(model, EXAMPLES, Recipe(1e-2, 4, steps=60)) for model in models]
    assert found[0].steps == 60
    assert found[0].losses == found[1].losses
    assert found[0].last_loss < 0.3
    assert all(torch.equal(a, b) for a, b in zip(*(model.parameters() for model in models), strict=True))


def test_each_step_has_the_next_items_also_after_going_on() -> None:
    taken: list[int] = []

    class Noted(EncodedTexts):
        def dataset(self, seed: int, length: int, batch_size: int) -> Any:
            items = super().dataset(seed, length, batch_size)

            class Items:
                def __getitem__(self, index: int) -> Any:
                    taken.append(index)
                    return items[index]

            return Items()

    examples = Noted(TEXTS, TEXTS, TEXTS.labels, build_tokenizer("byte", None), 16)
    training = Training(make(), examples, Recipe(1e-2, 4, steps=5))
    training.step()
    training.step()
    assert (training.steps, training.done, taken) == (2, 0.4, list(range(8)))
    again = Training(make(), examples, Recipe(1e-2, 4, steps=5))
    again.load_state_dict(training.state_dict())
    assert again.step() == training.step()
    assert taken[8:] == [8, 9, 10, 11] * 2


def test_a_time_is_kept() -> None:
    found = train(make(), EXAMPLES, Recipe(1e-3, 4, seconds=0.3))
    assert 0.3 <= found.seconds < 2
    assert found.steps > 1


def test_the_rate_rises_then_falls_to_a_tenth() -> None:
    rates = [rate_at(i / 1000, 0.05) for i in range(1001)]
    top = rates.index(max(rates))
    assert rates[:top] == sorted(rates[:top]) and rates[top:] == sorted(rates[top:], reverse=True)
    assert rates[top] == pytest.approx(1.0, abs=1e-3) and rates[-1] == pytest.approx(0.1)
    assert 0 < rates[0] < 0.1
    assert rate_at(0.0, 0.0) == 1.0


def test_bad_recipes_and_diverging() -> None:
    for budget in ({}, {"steps": 1, "seconds": 1.0}):
        with refused("steps or seconds"):
            Recipe(1e-3, 4, **budget)
    model = make()
    with torch.no_grad():
        model.score.weight.fill_(torch.nan)
    with refused("the loss became nan at step 1", "lower the learning rate", kind=SmhtError):
        train(model, EXAMPLES, Recipe(1e-3, 4, steps=2))
