"""Edited heads over many texts, against models with zeros among their weights and losses added up by hand."""

import copy
from typing import Any

import pytest
import torch
import torch.nn.functional as F

from helpers.edited_models import block_of, every_stack, make, silence, stack_names
from helpers.errors import refused
from helpers.hugging_face import random_tokens
from smht.inspection import Drop, Freeze, Swap, ablate, ablate_over, rank_heads, rank_heads_over
from smht.inspection.head_edits import ModelHeads

LENGTHS = (3, 6, 2)


def texts(stack: str) -> list[dict[str, Any]]:
    """Three texts of their own lengths with targets: labels of a classifier, what to write for two stacks."""
    found = []
    for number, length in enumerate(LENGTHS):
        ids = random_tokens(1, length, seed=number)
        labels: Any = {
            "decoder": {},
            "encoder": {"labels": torch.tensor([number % 2])},
            "encoder_decoder": {"labels": random_tokens(1, length + 1, seed=10 + number)},
        }[stack]
        found.append({"input_ids": ids, **labels})
    return found


def by_hand(model: Any, stack: str) -> tuple[float, float, int]:
    """Loss and accuracy over all targets, from the model's logits alone."""
    nats, right, count = 0.0, 0, 0
    for inputs in texts(stack):
        logits = model(**inputs, use_cache=False).logits.detach()
        if stack == "decoder":
            logits, targets = logits[0, :-1], inputs["input_ids"][0, 1:]
        else:
            logits, targets = logits.flatten(0, -2), inputs["labels"].flatten()
        nats += float(F.cross_entropy(logits, targets, reduction="sum"))
        right += int((logits.argmax(-1) == targets).sum())
        count += len(targets)
    return nats / count, right / count, count


@every_stack
def test_scores_are_those_of_a_model_with_zeros_among_its_weights(stack: str) -> None:
    model = make(stack, **({"num_labels": 2} if stack == "encoder" else {"bos_token_id": 1, "pad_token_id": 0}))
    name = stack_names(stack)[-1]
    other = copy.deepcopy(model)
    for part in ModelHeads(model).parts(name):
        silence(block_of(other, name, 1), part, 2)
    found = ablate_over(model, [Drop(1, 2, name)], texts(stack))
    for score, one in ((found.before, model), (found.after, other)):
        loss, accuracy, count = by_hand(one, stack)
        assert score.loss == pytest.approx(loss, rel=1e-12)
        assert (score.accuracy, score.targets) == (accuracy, count)
    assert found.loss_change == found.after.loss - found.before.loss


@pytest.mark.parametrize("statistics", ["live", "held"])
def test_every_text_is_edited_by_itself(statistics: str) -> None:
    model, edits = make(), [Freeze(0, 1), Swap(1, 0, 2)]
    found = ablate_over(model, edits, texts("decoder"), statistics)
    alone = [ablate(model, edits, statistics, **inputs) for inputs in texts("decoder")]
    total = sum(length - 1 for length in LENGTHS)
    losses = [float(one.losses_after.sum()) for one in alone]  # pyright: ignore[reportOptionalMemberAccess]
    assert found.after.loss == pytest.approx(sum(losses) / total, rel=1e-12)
    assert found.statistics == statistics and found.after.targets == total


def test_heads_are_ranked_over_all_texts() -> None:
    model = make()
    ranking = rank_heads_over(model, texts("decoder"), "held", parts=("attention",))
    assert len(ranking.effects) == 8
    assert [effect.change for effect in ranking.effects] == sorted((e.change for e in ranking.effects), reverse=True)
    for effect in (ranking.effects[0], ranking.effects[-1]):
        found = ablate_over(model, [Drop(effect.layer, effect.head, parts=("attention",))], texts("decoder"), "held")
        assert (effect.loss, effect.change, effect.accuracy) == (
            found.after.loss,
            found.loss_change,
            found.after.accuracy,
        )
    assert (ranking.loss, ranking.accuracy, ranking.targets) == by_hand_of(model)
    (one,) = texts("decoder")[1:2]
    assert rank_heads(model, **one) == rank_heads_over(model, [one])


def by_hand_of(model: Any) -> Any:
    loss, accuracy, count = by_hand(model, "decoder")
    return pytest.approx(loss, rel=1e-12), accuracy, count


def test_results_show_themselves() -> None:
    found = ablate_over(make("encoder", num_labels=2), [Drop(0, 1)], texts("encoder"), "held")
    text = str(found)
    for shown in ("drop layer 0 head 1", "mean of 3", f"{found.after.loss:.4f}", f"{found.after.accuracy:.2%}", "held"):
        assert shown in text
        assert shown in found._repr_html_()


def test_refusals() -> None:
    with refused("nothing to predict"):
        ablate_over(make(), [Drop(0, 1)], [{"input_ids": random_tokens(1, 1)}])
    with refused("nothing to predict"):
        rank_heads_over(make("encoder", num_labels=2), [{"input_ids": random_tokens(1)}])
    with refused("there is no head 9"):
        ablate_over(make(), [Drop(0, 9)], texts("decoder"))
