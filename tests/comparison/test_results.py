from dataclasses import replace
from pathlib import Path

import pytest

from helpers.errors import refused
from smht.comparison.results import TrialResult, read_results, write_results

RESULT = TrialResult(
    key="k",
    variant="split",
    purpose="final",
    seed=0,
    learning_rate=0.01,
    status="done",
    error=None,
    config={"split": ["qkv"]},
    parameters=10,
    parameters_without_embeddings=5,
    multiply_adds_per_token=7,
    cache_bytes_per_token=8,
    tokens=100,
    steps=10,
    seconds=0.5,
    tokens_per_second=200.0,
    peak_memory_bytes=None,
    training_multiply_adds=2100,
    validation_loss=1.0 / 3,
    bits_per_byte=0.5,
    repeats=0.1,
    curve=[{"step": 10, "tokens": 100, "seconds": 0.5, "training_multiply_adds": 2100, "validation_loss": 1.0 / 3}],
    backend="cpu",
    threads=2,
)


def test_results_come_back_as_they_were(tmp_path: Path) -> None:
    path = tmp_path / "results.jsonl"
    assert read_results(path) == []
    results = [RESULT, replace(RESULT, key="l", status="failed", error="ü\nx", validation_loss=None)]
    write_results(path, results)
    assert read_results(path) == results
    assert len(path.read_text().splitlines()) == 2


@pytest.mark.parametrize("damaged", ["{", "[]", "{}", '{"key": "k"}'])
def test_a_damaged_line_is_named(tmp_path: Path, damaged: str) -> None:
    path = tmp_path / "results.jsonl"
    path.write_text(f"{RESULT.to_json()}\n{damaged}\n{RESULT.to_json()}\n")
    with refused("results.jsonl, line 2, is damaged", "delete the line"):
        read_results(path)


def test_no_number_that_json_does_not_have() -> None:
    with pytest.raises(ValueError, match="JSON"):
        replace(RESULT, validation_loss=float("nan")).to_json()
