from collections.abc import Iterator, Sequence
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from helpers.errors import refused
from helpers.hugging_face import left_padded, random_tokens, right_padded
from helpers.layers import randomize
from smht.inspection import Drop, DropLineage, Freeze, Swap, ablate, edited_heads, rank_heads
from smht.models import SmhtConfig, SmhtForCausalLM, SmhtForSeq2SeqLM, SmhtForSequenceClassification, SmhtModel

SIZES: dict[str, Any] = {"vocab_size": 37, "hidden_size": 16, "num_attention_heads": 4, "max_position_embeddings": 16}


def make(model_class: Any = SmhtForCausalLM, **fields: Any) -> Any:
    torch.manual_seed(0)
    model = model_class(SmhtConfig(**{**SIZES, "num_hidden_layers": 2, **fields})).double()
    randomize(model)
    return model.eval()


def translator() -> SmhtForSeq2SeqLM:
    return make(SmhtForSeq2SeqLM, stack="encoder_decoder", bos_token_id=1, pad_token_id=0)


@pytest.mark.parametrize("statistics", ["live", "held"])
def test_losses_are_those_of_the_models(statistics: str) -> None:
    model, ids = make(), random_tokens()
    edits = [Drop(0, 1), Freeze(1, 2)]
    found = ablate(model, edits, statistics, input_ids=ids)
    with torch.no_grad(), edited_heads(model, edits, statistics, {"input_ids": ids}):
        after = model(ids, labels=ids)
    before = model(ids, labels=ids)
    assert found.loss_before == pytest.approx(before.loss.item(), rel=1e-6)  # transformers' loss is in float32
    assert found.loss_after == pytest.approx(after.loss.item(), rel=1e-6)
    torch.testing.assert_close(found.logit_change, after.logits - before.logits.detach())
    by_token = F.cross_entropy(after.logits[:, :-1].mT, ids[:, 1:], reduction="none")
    assert found.losses_after is not None
    torch.testing.assert_close(found.losses_after, F.pad(by_token, (0, 1)))
    assert found.loss_after == pytest.approx(float(by_token.mean()), rel=1e-12)
    assert found.statistics == statistics
    assert found.descriptions == ("drop layer 0 head 1", "freeze layer 1 head 2 at its mean")


@pytest.mark.parametrize("pad", [left_padded, right_padded])
def test_padding_is_not_predicted(pad: Any) -> None:
    model, ids = make(position_embedding="none"), random_tokens()
    padded, mask = pad(ids, 3)
    found = ablate(model, [Drop(0, 1)], input_ids=padded, attention_mask=mask)
    alone = ablate(model, [Drop(0, 1)], input_ids=ids)
    assert found.count == alone.count == 10
    assert found.loss_before == pytest.approx(alone.loss_before, rel=1e-12)
    assert found.loss_after == pytest.approx(alone.loss_after, rel=1e-12)


def test_a_translation_is_scored_by_its_labels_or_by_what_was_written() -> None:
    model, ids = translator(), random_tokens()
    labels = random_tokens(tokens=4, seed=1)
    edits = [Drop(0, 1, "encoder"), Swap(0, 1, 2, stack="decoder")]
    found = ablate(model, edits, input_ids=ids, labels=labels)
    with torch.no_grad(), edited_heads(model, edits):
        assert found.loss_after == pytest.approx(model(ids, labels=labels).loss.item(), rel=1e-6)
    written = model.prepare_decoder_input_ids_from_labels(labels)
    again = ablate(model, edits, input_ids=ids, decoder_input_ids=written)
    assert again.losses_after is not None and found.losses_after is not None
    torch.testing.assert_close(again.losses_after[:, :3], found.losses_after[:, :3])
    assert again.count == found.count - 2


def test_a_classifier_is_scored_by_its_labels() -> None:
    model, ids = make(SmhtForSequenceClassification, stack="encoder", num_labels=3).train(), random_tokens()
    labels = torch.tensor([2, 0])
    found = ablate(model, [DropLineage(1)], "held", input_ids=ids, labels=labels)
    assert model.training
    assert found.loss_before == pytest.approx(model.eval()(ids, labels=labels).loss.item())
    assert len(found.token_table().rows) == 1
    without = ablate(model, [DropLineage(1)], input_ids=ids)
    assert without.loss_change is None
    torch.testing.assert_close(without.logits_before, found.logits_before)
    assert "nats" not in str(without)
    before, after = without.logits_before[0].softmax(-1), without.logits_after[0].softmax(-1)
    table = without.label_table(["bad", "<good>", "neither"])
    assert [row[0] for row in table.rows] == ["bad", "<good>", "neither"]
    assert [float(row[1]) for row in table.rows] == pytest.approx(before.tolist(), abs=6e-5)
    assert [float(row[3]) for row in table.rows] == pytest.approx((after - before).tolist(), abs=6e-5)
    assert "label, probability" in str(found)
    with refused("there are 3 labels and 1 names"):
        without.label_table(["a"])
    with refused("gives tokens probabilities, not labels"):
        ablate(make(), [Drop(0, 1)], input_ids=ids).label_table()
    with refused("nothing to predict"):
        without.token_table()


@given(split=st.sampled_from([("qkv", "output", "feed_forward"), ("feed_forward",), ()]), held=st.booleans())
def test_every_head_is_ranked_by_what_its_loss_does(split: tuple[str, ...], held: bool) -> None:
    model, ids = make(split=split), random_tokens(1)
    statistics = "held" if held else "live"
    ranking = rank_heads(model, statistics, input_ids=ids)
    assert {(effect.layer, effect.head) for effect in ranking.effects} == {(i, j) for i in range(2) for j in range(4)}
    changes = [effect.change for effect in ranking.effects]
    assert changes == sorted(changes, reverse=True)
    for effect in ranking.effects[:2]:
        alone = ablate(model, [Drop(effect.layer, effect.head)], statistics, input_ids=ids)
        assert (effect.loss, effect.change) == (alone.loss_after, alone.loss_change)
    assert ranking.loss == ablate(model, [], input_ids=ids).loss_before


def test_heads_are_ranked_by_some_of_their_parts() -> None:
    ids = {"input_ids": random_tokens(), "decoder_input_ids": random_tokens(tokens=4)}
    ranking = rank_heads(translator(), parts=("cross_attention",), **ids)
    assert {effect.stack for effect in ranking.effects} == {"decoder"}
    assert ranking.parts == "decoder cross-attention"
    alone = ablate(translator(), [Drop(1, 2, "decoder", ("cross_attention",))], **ids)
    assert next(e.loss for e in ranking.effects if (e.layer, e.head) == (1, 2)) == alone.loss_after
    assert "no lineage" not in str(ranking)


def test_ranking_says_which_head_it_is_at() -> None:
    seen = []

    def track(drops: Sequence[Drop]) -> Iterator[Drop]:
        for drop in drops:
            yield drop
            seen.append((drop.layer, drop.head, len(drops)))

    rank_heads(make(), track=track, input_ids=random_tokens(1))
    assert seen == [(layer, head, 8) for layer in range(2) for head in range(4)]


def test_results_show_themselves() -> None:
    model, ids = make(), random_tokens(1)
    found = ablate(model, [Drop(0, 1)], "held", input_ids=ids)
    text, page = str(found), found._repr_html_()
    for shown in (
        "drop layer 0 head 1",
        "norms' statistics held",
        "attention, feed-forward",
        f"{found.loss_after:.4f}",
    ):
        assert shown in text
        assert shown.replace("'", "&#x27;") in page
    table = found.token_table(["<b>", "[red]", "\n", "d", "e"])
    assert "&lt;b&gt;" in table._repr_html_() and "<b>" not in table._repr_html_()
    assert "<b>" in str(table) and "[red]" in str(table)
    assert [row[0] for row in found.token_table().rows] == [str(i) for i in ids[0, 1:].tolist()]
    with refused("there are 5 targets and 1 names"):
        found.token_table(["a"])
    ranking = rank_heads(model, input_ids=ids)
    assert ranking._repr_html_().count("<tr>") == 1 + 8
    assert str(ranking).splitlines()[0].startswith("whole model: loss")


def test_refusals() -> None:
    ids: Tensor = random_tokens(1)
    with refused("no loss to see change: SmhtModel has no head"):
        ablate(make(SmhtModel), [Drop(0, 1)], input_ids=ids)
    with refused("nothing to predict: give more tokens, or labels"):
        rank_heads(make(), input_ids=ids[:, :1])
    with refused("nothing to predict"):
        rank_heads(make(SmhtForSequenceClassification, stack="encoder", num_labels=3), input_ids=ids)
    with refused("there is no head 9"):
        ablate(make(), [Drop(0, 9)], input_ids=ids)
    with refused("no part 'mlp'"):
        rank_heads(make(), parts=("mlp",), input_ids=ids)
    with refused("statistics = 'frozen'"):
        ablate(make(), [], "frozen", input_ids=ids)
