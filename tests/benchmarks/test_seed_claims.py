"""Benchmarks of what the seeds claim: their arithmetic, and that small ones run."""

import math
from pathlib import Path

import pytest
import torch

from helpers.benchmarks import benchmark


def test_lengths_cross_on_straight_lines_of_logarithms() -> None:
    with benchmark("recurrence") as recurrence:
        assert recurrence.crossing({16: 4.0, 64: 1 / 4}) == pytest.approx(32)
        assert recurrence.crossing({16: 8.0, 64: 2.0, 256: 1.0}) == pytest.approx(256)
        assert recurrence.crossing({16: 4.0, 64: 2.0}) is None


def test_attention_and_recurrence_are_timed(monkeypatch: pytest.MonkeyPatch) -> None:
    with benchmark("recurrence") as recurrence:
        monkeypatch.setattr(recurrence, "LENGTHS", (4, 16))
        monkeypatch.setattr(recurrence, "TOKENS", 32)
        figures = [*recurrence.length_figures(16, 1), *recurrence.sentence_figures(16, 1)]
    assert all(figure.value is None or (math.isfinite(figure.value) and figure.value > 0) for figure in figures)
    assert [figure.value for figure in figures if "multiplications" in figure.name] == [32]
    assert sum("50 words" in figure.name for figure in figures) == 8


def test_the_share_of_other_chunks() -> None:
    with benchmark("isolation") as isolation:
        assert isolation.share_between(torch.eye(4)) == 0
        assert isolation.share_between(torch.ones(4, 4)) == pytest.approx(3 / 4)
        assert isolation.share_between(torch.tensor([[2.0, 1.0], [0.0, 2.0]])) == pytest.approx(1 / 9)


def test_chunks_with_norms_of_their_own_stay_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    text = tmp_path / "text.txt"
    text.write_text("the quick brown fox jumps over the lazy dog\n" * 200)
    with benchmark("isolation") as isolation:
        monkeypatch.setattr(isolation, "CONTEXT", 8)
        monkeypatch.setattr(isolation, "CHECKED_WINDOWS", 4)
        examples, vocab_size, texts = isolation.read(text, 1)
        found = {figure.name: figure.value for figure in isolation.figures_of(examples, vocab_size, texts, 2)}
    held = [value for name, value in found.items() if name.endswith("held")]
    live = [value for name, value in found.items() if name.endswith("live")]
    assert len(held) == len(live) == 8
    assert held[:4] == [0.0] * 4 and all(value > 1 for value in held[5:])
    assert live[:2] == [0.0] * 2 and all(value > 0 for value in live[2:])


def test_softmax_of_unscaled_scores_stops_answering_as_heads_grow() -> None:
    with benchmark("score_scale") as score_scale:
        scaled = [score_scale.responsiveness(width, 200, width**-0.5) for width in (8, 256)]
        unscaled = [score_scale.responsiveness(width, 200, 1.0) for width in (8, 256)]
    assert scaled[1] == pytest.approx(scaled[0], rel=0.05)
    assert unscaled[1] < unscaled[0] / 2 < scaled[0]
