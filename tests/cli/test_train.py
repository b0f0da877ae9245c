import json
import signal
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from safetensors.torch import load_file
from transformers import AutoTokenizer

from helpers.command_line import FOUR_STEPS, TINY, Result, contents, smht, succeed
from smht.tasks import language_modelling
from smht.tasks.text_files import STANDARD_LIBRARY, read_texts
from smht.training.preparation import STANDARD_INPUT_COPY
from smht.training.progress import TrainingDisplay

Train = Callable[..., Result]

RESULTS = {
    "steps",
    "tokens",
    "seconds",
    "best_step",
    "validation_loss",
    "bits_per_byte",
    "training_loss",
    "tokens_per_second",
    "sha256",
}


def record_of(run: str | Path) -> dict[str, Any]:
    return json.loads((Path(run) / "run.json").read_text(encoding="utf-8"))


def test_a_run_says_what_it_will_take_then_how_it_goes(first_call: tuple[Path, Result]) -> None:
    lines = first_call[1].err.splitlines()
    expected = ["text ", "model ", "budget ", "rate ", "expect ", "run ", "step 2/4 ", "step 4/4 "]
    assert [line.startswith(start) for line, start in zip(lines, expected, strict=True)] == [True] * 8
    for fragment in ("of memory", "of disk", "on cpu in float32"):
        assert fragment in lines[4]
    for fragment in ("loss", "nats/token", "bits/byte", "tokens/s"):
        assert fragment in lines[6]


def test_a_run_ends_with_a_sample_a_table_and_the_next_command(first_call: tuple[Path, Result]) -> None:
    run, result = first_call
    results = record_of(run)["results"]
    before, _, after = result.out.partition("sample\n")
    assert before == "\n"
    for value in (f"{results['validation_loss']:.4f} nats", f"{results['bits_per_byte']:.4f}", "128 tokens", "5,776"):
        assert value in after
    command = after.splitlines()[-1].removeprefix("next: ")
    assert command == "smht generate run 'The '"
    assert "\x1b" not in result.err


def test_the_run_folder_is_whole(run: Path) -> None:
    files = set(contents(run))
    for name in ("config.json", "model.safetensors", "tokenizer.json", "run.json", "metrics.jsonl"):
        assert name in files
    assert {"checkpoints/step-000002/manifest.json", "checkpoints/step-000004/manifest.json"} <= files
    record = record_of(run)
    assert record["status"] == "finished"
    assert record["asked"]["texts"] == ["text.txt"]
    assert set(record["results"]) == RESULTS


def test_a_finished_run_has_its_picture(run: Path) -> None:
    pytest.importorskip("matplotlib")
    assert (run / "plots/learning-curve.png").read_bytes().startswith(b"\x89PNG")


def test_the_tokenizer_knows_the_context(run: Path) -> None:
    tokenizer = AutoTokenizer.from_pretrained(run)
    assert tokenizer.model_max_length == record_of(run)["settings"]["context"]
    assert len(tokenizer("a" * 100, truncation=True).input_ids) == tokenizer.model_max_length


def test_json(train: Train) -> None:
    values = train("--json", "--output", "run").json
    assert values.pop("run") == "run"
    assert values.pop("status") == "finished"
    assert set(values) == RESULTS
    assert values == record_of("run")["results"]
    assert (values["steps"], values["tokens"]) == (4, 4 * 2 * 16)


def test_a_seed_repeats_bit_by_bit_and_another_differs(train: Train, run: Path) -> None:
    first = record_of(run)["results"]["sha256"]
    again = train("--seed", "0", "--output", "again", "--json").json["sha256"]
    other = train("--seed", "1", "--output", "other", "--json").json["sha256"]
    assert again == first != other


def test_text_from_standard_input_is_kept_for_resuming(train: Train, text: bytes, run: Path) -> None:
    train("--output", "run", texts=("-",), stdin=text)
    assert (Path("run") / STANDARD_INPUT_COPY).read_bytes() == text
    assert record_of("run")["results"]["validation_loss"] == record_of(run)["results"]["validation_loss"]
    assert succeed("train", "--resume", "run", "--steps", "5", "--json").json["steps"] == 5


def test_files_folders_and_globs(train: Train, text: bytes) -> None:
    for name in ("many/a.txt", "many/deeper/b.txt", "more/c.md", "more/d.txt"):
        Path(name).parent.mkdir(parents=True, exist_ok=True)
        Path(name).write_bytes(name.encode() + text)
    train("--output", "run", texts=("text.txt", "many", "mo*/*.md"))
    assert record_of("run")["data"]["text"]["documents"] == 4


def test_special_tokens_in_text_stay_text(run: Path, text: bytes) -> None:
    data = record_of(run)["data"]
    assert b"<eos>" in text
    for part in (data["training"], data["validation"]):
        assert part["tokens"] == part["bytes"] + 2  # the one begin token and the one end token


def test_without_text_it_is_the_standard_library(train: Train, monkeypatch: pytest.MonkeyPatch) -> None:
    standard = replace(read_texts(["text.txt"]), sources=(STANDARD_LIBRARY,))
    monkeypatch.setattr(language_modelling, "standard_library", lambda: standard)
    result = train("--output", "run", texts=())
    assert record_of("run")["asked"]["texts"] == []
    assert result.out.endswith("\nnext: smht generate run 'def '\n")


def test_validation_text_is_what_evaluate_measures(train: Train) -> None:
    Path("held out.txt").write_text("the split head returns for the block\n" * 9)
    trained = train("--validation", "held out.txt", "--output", "run", "--json").json
    evaluated = succeed("evaluate", "run", "held out.txt", "--device", "cpu", "--json").json
    assert evaluated["loss"] == pytest.approx(trained["validation_loss"], rel=1e-5)
    assert evaluated["bits_per_byte"] == pytest.approx(trained["bits_per_byte"], rel=1e-5)
    assert record_of("run")["data"]["training"]["bytes"] == Path("text.txt").stat().st_size


@pytest.mark.parametrize("tokenizer", ["char", "bpe"])
def test_other_tokenizers(train: Train, tokenizer: str) -> None:
    size = ("--vocab-size", "270") if tokenizer == "bpe" else ()
    train("--tokenizer", tokenizer, *size, "--output", "run")
    vocab_size = json.loads(Path("run/config.json").read_text())["vocab_size"]
    assert vocab_size == {"bpe": 270, "char": 259 + len("é")}[tokenizer]
    assert succeed("generate", "run", "é", "--max-new-tokens", "4").out.startswith("é")


def test_bytes_take_any_file_and_replace_makes_text_of_it(train: Train) -> None:
    Path("binary").write_bytes(bytes(range(256)) * 8)
    train("--output", "bytes", texts=("binary",))
    train("--tokenizer", "char", "--errors", "replace", "--output", "replaced", texts=("binary",))
    assert record_of("replaced")["settings"]["errors"] == "replace"


def test_epochs() -> None:
    result = succeed("train", "text.txt", *TINY, "--epochs", "0.5", "--output", "run", "--json").json
    windows = (record_of("run")["data"]["training"]["tokens"] - 1) // 16
    assert abs(2 * result["steps"] - 0.5 * windows) < 2  # to the nearest whole step of two windows


def test_time() -> None:
    succeed("train", "text.txt", *TINY, "--time", "0.2s", "--output", "run")
    # Evaluations of 10 ms may take a third of it, so there are six; 140 ms are left for steps of 10 ms.
    assert record_of("run")["settings"]["steps"] in (13, 14)
    assert record_of("run")["settings"]["evaluate_every"] == 3


def test_a_dense_model_needs_no_other_flag_than_split(train: Train) -> None:
    train("--split", "none", "--output", "run")
    config = json.loads(Path("run/config.json").read_text())
    assert (config["split"], config["mixing"]) == ([], "none")


def test_folders_are_numbered(train: Train) -> None:
    assert [train("--json").json["run"] for _ in range(2)] == ["runs/run-1", "runs/run-2"]


def test_from_starts_with_the_weights_of_another_run(run: Path) -> None:
    arguments = ("--split", "output,feed-forward,qkv", "--tokenizer", "byte", "--dropout", "0.1", "--steps", "1")
    succeed("train", "text.txt", "--from", run, *arguments, "--batch-size", "2", "--output", "tuned")
    there, here = (
        load_file(path) for path in (run / "model.safetensors", "tuned/checkpoints/step-000000/model.safetensors")
    )
    assert there.keys() == here.keys()
    assert all(there[name].equal(here[name]) for name in there)
    config = json.loads(Path("tuned/config.json").read_text())
    assert config["hidden_dropout"] == config["attention_dropout"] == 0.1
    assert record_of("tuned")["settings"]["context"] == 16


def test_a_finished_run_is_extended(copied_run: Path) -> None:
    result = succeed("train", "--resume", copied_run, "--steps", "6", "--json").json
    assert (result["steps"], result["tokens"]) == (6, 6 * 2 * 16)


def test_flags_that_a_run_already_has_may_be_repeated(copied_run: Path) -> None:
    again = ("text.txt", *TINY[:-2], "--evaluate-every", "2", "--output", copied_run)
    assert succeed("train", "--resume", copied_run, *again, "--steps", "5", "--json").json["steps"] == 5


def test_a_run_on_auto_resumes_on_auto(train: Train) -> None:
    train("--device", "auto", "--output", "run")
    assert succeed("train", "--resume", "run", "--device", "auto", "--steps", "5", "--json").json["steps"] == 5


def test_brackets_in_names_are_no_markup(train: Train, text: bytes) -> None:
    Path("a[").mkdir()
    Path("a[/b].txt").write_bytes(text)
    for name in ("te[xy]t.txt", "a[/b].txt"):
        assert name in train("--output", f"run of {name[0]}[bold]", texts=(name,)).err
    assert Path("run of t[bold]").is_dir()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupted_run_is_saved_and_ends_as_if_it_had_not_been(
    run: Path, monkeypatch: pytest.MonkeyPatch, number: signal.Signals
) -> None:
    show = TrainingDisplay.show

    def show_and_stop(self: TrainingDisplay, row: dict[str, Any]) -> None:
        show(self, row)
        if row["step"] == 2:
            signal.raise_signal(number)

    with monkeypatch.context() as patches:
        patches.setattr(TrainingDisplay, "show", show_and_stop)
        result = smht("train", "text.txt", *TINY, *FOUR_STEPS, "--output", "my run", "--json")
    assert result.code == 130
    assert result.json["status"] == record_of("my run")["status"] == "interrupted"
    last = result.err.splitlines()[-1]
    stopped_at = result.json["steps"]
    assert stopped_at in (2, 3)
    assert last == f"stopped after step {stopped_at} and saved; go on with: smht train --resume 'my run'"
    assert succeed("train", "--resume", "my run", "--json").json["sha256"] == record_of(run)["results"]["sha256"]


def test_interrupted_before_anything_was_trained(monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt(*arguments: object, **options: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(language_modelling, "read_texts", interrupt)
    result = smht("train", "text.txt", *TINY, *FOUR_STEPS, "--output", "run")
    assert (result.code, result.out, result.err) == (130, "", "smht: interrupted\n")
    assert not Path("run").exists()
    monkeypatch.setenv("RANK", "1")  # rank 0 has said so
    assert smht("train", "text.txt", *TINY, *FOUR_STEPS, "--output", "run").err == ""
