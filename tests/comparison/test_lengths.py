"""Windows of other lengths than were trained on."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from helpers.command_line import smht
from helpers.comparisons import make_request, run, write_text
from helpers.errors import refused
from helpers.runs import make_model
from smht import SmhtConfig, SmhtForCausalLM
from smht.comparison.lengths import evaluate_lengths, parse_multiples, to_tokens
from smht.comparison.report import write_report
from smht.comparison.setting import prepare
from smht.layers.position import POSITION_ENCODINGS
from smht.tasks.language_modelling import WindowedText
from smht.tasks.token_stream import TokenStream


def examples(tokens: int = 129) -> WindowedText:
    ids = np.random.default_rng(0).integers(0, 256, tokens).astype(np.uint16)
    return WindowedText(TokenStream(ids, tokens), TokenStream(ids, tokens), 16)


def loss_by_hand(model: SmhtForCausalLM, ids: np.ndarray, length: int) -> float:
    """Of whole windows one by one, by a model that was built with so many positions."""
    longer = make_model(**{**model.config.to_diff_dict(), "max_position_embeddings": length}).eval()
    longer.load_state_dict(model.state_dict())
    losses = []
    for start in range(0, len(ids) - 1, length):
        window = torch.from_numpy(ids[start : start + length + 1].astype(np.int64))
        logits = longer(window[None, :-1]).logits[0]
        losses += F.cross_entropy(logits, window[1:], reduction="none").tolist()
    return sum(losses) / len(losses)


@pytest.mark.parametrize("kind", [kind for kind in POSITION_ENCODINGS if kind != "learned"])
def test_against_models_built_with_more_positions(kind: str) -> None:
    model = make_model(position_embedding=kind).eval()
    before = {name: weight.clone() for name, weight in model.state_dict().items()}
    text = examples()
    with torch.no_grad():
        points = evaluate_lengths(model, text, (8, 16, 64))
        for point in points:
            by_hand = loss_by_hand(model, text.validation.ids, point["length"])
            assert point["validation_loss"] == pytest.approx(by_hand, rel=1e-5)
            assert point["bits_per_byte"] == pytest.approx(by_hand / np.log(2), rel=1e-5)
            assert point["why_not"] is None
    assert model.config.max_position_embeddings == 16
    assert all(torch.equal(before[name], weight) for name, weight in model.state_dict().items())


def test_learned_positions_end() -> None:
    points = evaluate_lengths(make_model(), examples(), (8, 16, 32))
    assert [point["validation_loss"] is None for point in points] == [False, False, True]
    assert points[2]["why_not"] == "learned positions end at 16"
    assert points[2]["bits_per_byte"] is None


def test_a_text_shorter_than_the_window() -> None:
    (point,) = evaluate_lengths(make_model(position_embedding="none"), examples(30), (32,))
    assert point["validation_loss"] is None and "30 tokens" in point["why_not"]


def test_multiples() -> None:
    assert parse_multiples("0.5, 1,4") == (0.5, 1.0, 4.0)
    assert parse_multiples("none") == ()
    assert to_tokens((4, 0.5, 1, 0.01), 16) == (2, 8, 16, 64)
    for text in ("", "0", "-1", "1,x", "nan", "inf", "65"):
        with refused(f"lengths = {text}", "such as 0.5,1,2,4"):
            parse_multiples(text)


def test_when_lengths_are_looked_at(text: Path) -> None:
    def lengths(**changes: Any) -> tuple[int, ...]:
        return prepare(make_request(text, **changes)).lengths

    assert lengths() == ()
    assert lengths(variants="split+rotary,split+none".replace("none", "no-positions")) == (8, 16, 32, 64)
    assert lengths(variants="split+rotary,split+learned", lengths=()) == ()
    assert lengths(lengths=(0.25, 2.0)) == (4, 32)


@pytest.mark.usefixtures("fixed_costs")
def test_a_comparison_of_positions(text: Path, tmp_path: Path) -> None:
    folder = tmp_path / "comparison"
    outcome = run(make_request(text, variants="split+positions", rates=1, seeds=2), folder)
    for result in outcome.results:
        losses = {point["length"]: point["validation_loss"] for point in result.lengths}
        assert losses[16] == pytest.approx(result.validation_loss)
        assert (losses[64] is None) == (SmhtConfig(**result.config).position_embedding == "learned")
    write_report(folder)
    report = (folder / "report.md").read_text()
    assert "## Lengths" in report and "16 (trained)" in report
    assert "split+learned at 64: learned positions end at 16" in report
    assert (folder / "figures/lengths.svg").exists()


def test_lengths_that_are_refused(tmp_path: Path) -> None:
    text = write_text(tmp_path)
    result = smht("compare", text, "--budget", "tokens=640", "--lengths", "0.5,two", "--output", tmp_path / "new")
    assert result.code == 2 and "lengths = 0.5,two" in result.err
    assert not (tmp_path / "new").exists()


def test_a_comparison_is_one_with_its_lengths(text: Path, tmp_path: Path, fixed_costs: None) -> None:
    folder = tmp_path / "comparison"
    run(make_request(text, rates=1, seeds=1), folder)
    assert json.loads((folder / "comparison.json").read_text())["asked"]["lengths"] == []
    with refused("was begun with lengths = [], not [16]"):
        run(make_request(text, rates=1, seeds=1, lengths=(1.0,)), folder)
