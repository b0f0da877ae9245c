"""`smht train --task translation` and what one does with the run."""

import shutil
from pathlib import Path

import pytest

from helpers.command_line import Result, refuse, succeed
from helpers.together import untimed
from smht.tasks import built_in_pairs

TINY = ("--hidden-size", "16", "--num-hidden-layers", "1", "--num-attention-heads", "2", "--context", "24")
FLAGS = (
    "--task",
    "translation",
    *TINY,
    "--batch-size",
    "4",
    "--device",
    "cpu",
    "--steps",
    "4",
    "--evaluate-every",
    "2",
)
PAIRS = "".join(f"angka {i}\ttal {i}\n" for i in range(40))


@pytest.fixture(scope="module")
def translated(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Result]:
    folder = tmp_path_factory.mktemp("translation")
    (folder / "pairs.tsv").write_text(PAIRS)
    with pytest.MonkeyPatch.context() as patches, untimed():
        patches.chdir(folder)
        return folder / "run", succeed("train", "pairs.tsv", *FLAGS, "--output", "run")


@pytest.fixture
def translator(translated: tuple[Path, Result]) -> Path:
    Path("pairs.tsv").write_text(PAIRS)
    return translated[0]


def test_what_training_shows(translated: tuple[Path, Result]) -> None:
    result = translated[1]
    assert "36 pairs to learn from" in result.err and "4 held out" in result.err
    assert "an encoder of 1 and a decoder of 1 blocks of width 16" in result.err
    assert "nats/target token" in result.err and "% exact" in result.err
    assert result.out.count(" → ") == 4
    for label in ("exact match", "BLEU", "chrF", "nats per target token"):
        assert label in result.out
    assert "next: smht generate run 'angka " in result.out


def test_numbers_from_indonesian_to_swedish_are_the_default(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("num2words")
    monkeypatch.setattr(built_in_pairs, "DEFAULT_LIMIT", 200)  # all 10,000 are what tests/tasks reads
    result = succeed("train", *FLAGS, "--context", "64", "--output", "run", "--json")
    assert result.json["status"] == "finished"
    assert {"exact_match", "bleu", "chrf", "validation_loss"} <= result.json.keys()
    assert "the numbers from 0 to 199 in words, id to sv" in result.err


def test_generate_translates_line_by_line(translator: Path) -> None:
    assert succeed("generate", translator, "angka 1").out.count("\n") == 1
    assert succeed("generate", translator, "angka 1\nangka 2\n\n").out.count("\n") == 2
    found = succeed("generate", translator, "--json", "--beams", "2", stdin="angka 1\nangka två\n".encode()).json
    assert [pair["source"] for pair in found] == ["angka 1", "angka två"]


def test_evaluate_measures_pairs(translator: Path) -> None:
    found = succeed("evaluate", translator, "pairs.tsv", "--json").json
    assert found["examples"] == 40
    assert found.keys() == {"loss", "exact_match", "bleu", "chrf", "examples"}
    out = succeed("evaluate", translator, "pairs.tsv").out
    assert "nats per target token" in out and "exact match" in out


def test_runs_lists_it(translator: Path) -> None:
    row = succeed("runs", translator.parent, "--json").json[0]
    assert row["task"] == "translation"
    assert row["metric"] == "exact_match"
    assert "exact" in succeed("runs", translator.parent).out


def test_summary_of_it(translator: Path) -> None:
    assert "Decoder: cross-attention" in succeed("summary", translator).out


def test_resuming_and_extending(translator: Path) -> None:
    shutil.copytree(translator, "copy")
    shutil.copy("pairs.tsv", translator.parent / "pairs.tsv")
    assert succeed("train", "--resume", "copy", "--steps", "6", "--json").json["steps"] == 6


def test_pairs_from_standard_input_are_kept_for_resuming() -> None:
    succeed("train", "-", *FLAGS, "--output", "run", stdin=PAIRS.encode())
    assert succeed("train", "--resume", "run", "--steps", "5", "--json").json["steps"] == 5


@pytest.mark.parametrize(
    ("rows", "says"),
    [
        ("one\ttwo\nthree\n", ("bad.tsv, line 2", "1 column")),
        ("one\ttwo\nthree\t\n", ("bad.tsv, line 2", "empty target")),
        ("\ttwo\n", ("bad.tsv, line 1", "empty source")),
        ("one\ttwo\n", "too few pairs to hold some out"),
        ("x" * 30 + "\ty\na\tb\n", ("the source 'xxx", "31 tokens with its end token", "context of 24")),
    ],
)
def test_bad_pairs(rows: str, says: str | tuple[str, ...]) -> None:
    Path("bad.tsv").write_text(rows)
    refuse("train", "bad.tsv", *FLAGS, "--output", "run", says=says)


def test_other_bad_input(translator: Path) -> None:
    pytest.importorskip("num2words")
    refuse("train", "numbers:id-svv", *FLAGS, "--output", "run", says=("no language 'svv'", "did you mean"))
    refuse("train", *FLAGS, "--stack", "encoder", "--output", "run", says="encoder_decoder does")
    refuse("train", "--task", "translate", says=("translate", "translation"))
    refuse("generate", translator, "x" * 24, says=("line 1 has 25 tokens", "context of 24"))
    refuse("generate", translator, "", says="nothing to translate")
    refuse("generate", translator, "a", "--beams", "0", says="beams = 0")
    refuse("predict", translator, "a", says=("is a translation run", f"smht generate {translator}"))
    refuse("evaluate", translator, "pairs.tsv", "--stride", "4", says="--context and --stride are for language models")
    refuse(
        "train",
        "text.txt",
        "--from",
        translator,
        "--output",
        "new",
        says=("stack = 'encoder_decoder'", "needs 'decoder'"),
    )


def test_heads_of_both_stacks_are_ablated(translator: Path) -> None:
    asked = ("ablate", translator, "angka 3", "--target", "tal 3", "--json")
    found = succeed(*asked, "--drop", "encoder.0.1,decoder.0.0", "--generate", "4").json
    assert [edit["edit"] for edit in found["edits"]] == ["drop encoder layer 0 head 1", "drop decoder layer 0 head 0"]
    assert found["parts"] == "encoder attention, feed-forward; decoder attention, cross-attention, feed-forward"
    assert [token["token"] for token in found["tokens"]] == [*"tal 3", "<eos>"]
    assert {"text_before", "text_after"} <= found.keys()
    held = succeed(*asked, "--drop", "encoder.0.1", "--statistics", "held", "--generate", "4").json
    assert held["loss_before"] == found["loss_before"]
    ranking = succeed(*asked, "--rank", "--parts", "cross-attention").json
    assert {(effect["stack"], effect["head"]) for effect in ranking["effects"]} == {("decoder", 0), ("decoder", 1)}
    shown = succeed("ablate", translator, "angka 3", "--target", "tal 3", "--rank").out.splitlines()
    assert shown[1].split()[:3] == ["stack", "layer", "head"]
    assert {line.split()[0] for line in shown[3:7]} == {"encoder", "decoder"}


def test_ablation_over_pairs_starts_from_the_loss_of_evaluate(translator: Path) -> None:
    Path("few.tsv").write_text("angka 1\ttal 1\nangka 23\ttal 23\n")
    over = ("ablate", translator, "few.tsv", "--files", "--json")
    found = succeed(*over, "--swap", "decoder.0.0:decoder.0.1").json
    evaluated = succeed("evaluate", translator, "few.tsv", "--json").json
    assert found["before"]["loss"] == pytest.approx(evaluated["loss"], rel=1e-5)
    assert found["before"]["targets"] == len("tal 1") + len("tal 23") + 2 and found["texts"] == 2
    ranking = succeed(*over, "--rank", "--most", "1").json
    assert ranking["targets"] == len("tal 1") + 1
    assert {(effect["stack"], effect["head"]) for effect in ranking["effects"]} == {
        *(("encoder", 0), ("encoder", 1), ("decoder", 0), ("decoder", 1))
    }


def test_what_ablation_of_two_stacks_refuses(translator: Path) -> None:
    refuse("ablate", translator, "angka", "--target", "tal", "--drop", "0.1", says="two stacks: name 'encoder' or")
    refuse("ablate", translator, "angka", "--drop", "encoder.0.1", says="give a --target")
    refuse("ablate", translator, "x" * 24, "--target", "y", "--drop", "encoder.0.1", says="the model's 24 positions")
    refuse("ablate", translator, "x", "--target", "y" * 24, "--drop", "encoder.0.1", says="the model's 24 positions")
