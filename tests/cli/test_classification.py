"""`smht train --task classification` and what one does with the run."""

import json
import math
import shutil
from pathlib import Path

import pytest

from helpers.command_line import Result, refuse, succeed
from helpers.together import untimed

TINY = ("--hidden-size", "16", "--num-hidden-layers", "1", "--num-attention-heads", "2", "--context", "16")
BUDGET = ("--batch-size", "4", "--device", "cpu", "--steps", "4", "--evaluate-every", "2")
FLAGS = ("--task", "classification", *TINY, "--tokenizer", "byte", *BUDGET)
TEXTS = "text,label\n" + "".join(f"text {i},{'odd' if i % 2 else 'even'}\n" for i in range(40))


@pytest.fixture(scope="module")
def classified(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Result]:
    folder = tmp_path_factory.mktemp("classification")
    (folder / "texts.csv").write_text(TEXTS)
    with pytest.MonkeyPatch.context() as patches, untimed():
        patches.chdir(folder)
        return folder / "labels", succeed("train", "texts.csv", *FLAGS, "--output", "labels")


@pytest.fixture
def labels(classified: tuple[Path, Result]) -> Path:
    Path("texts.csv").write_text(TEXTS)
    return classified[0]


def test_what_training_shows(classified: tuple[Path, Result]) -> None:
    result = classified[1]
    assert "36 texts to learn from" in result.err and "labels even, odd" in result.err
    assert "an encoder of 1 block of width 16" in result.err
    for label in ("accuracy", "macro-F1", "nats per text"):
        assert label in result.out
    assert "next: smht predict labels 'text " in result.out


def test_predict_gives_each_text_a_label(labels: Path) -> None:
    found = succeed("predict", labels, "text 1", "a text of more than sixteen tokens", "--json").json
    assert [result["text"] for result in found] == ["text 1", "a text of more than sixteen tokens"]
    assert [result["is_cut"] for result in found] == [False, True]
    for result in found:
        assert result["probabilities"].keys() == {"even", "odd"}
        assert sum(result["probabilities"].values()) == pytest.approx(1)
        assert result["label"] == max(result["probabilities"], key=result["probabilities"].get)
    out = succeed("predict", labels, stdin=b"text 1\n\ntext 2\n").out
    assert len(out.splitlines()) == 4  # header, rule, two texts
    assert "its end was not read" in succeed("predict", labels, "a text of more than sixteen tokens").out


def test_evaluate_measures_labelled_texts(labels: Path) -> None:
    found = succeed("evaluate", labels, "texts.csv", "--json").json
    assert found["examples"] == 40
    assert found.keys() == {"loss", "accuracy", "macro_f1", "examples"}


def test_a_language_model_is_a_start(run: Path, labels: Path) -> None:
    """Transfer: a decoder that has learned text goes on to learn labels, with a fresh head."""
    succeed("train", "texts.csv", "--task", "classification", "--from", run, *BUDGET, "--output", "new")
    config = json.loads(Path("new/config.json").read_text())
    assert config["architectures"] == ["SmhtForSequenceClassification"]
    assert config["stack"] == "decoder"
    assert succeed("predict", "new", "text 1", "--json").json[0]["label"] in ("even", "odd")
    assert succeed("train", "--resume", "new", "--steps", "6", "--json").json["steps"] == 6


def test_a_classifier_goes_on_with_other_labels_and_a_fresh_head(labels: Path) -> None:
    Path("three.csv").write_text("text,label\n" + "".join(f"text {i},{'abc'[i % 3]}\n" for i in range(30)))
    succeed("train", "three.csv", "--task", "classification", "--from", labels, *BUDGET, "--output", "new")
    assert json.loads(Path("new/config.json").read_text())["id2label"] == {"0": "a", "1": "b", "2": "c"}


def test_a_decoder_can_be_asked_for() -> None:
    Path("texts.csv").write_text(TEXTS)
    succeed("train", "texts.csv", *FLAGS, "--stack", "decoder", "--output", "new")
    assert json.loads(Path("new/config.json").read_text())["stack"] == "decoder"


def test_runs_lists_it(labels: Path) -> None:
    row = succeed("runs", labels.parent, "--json").json[0]
    assert (row["task"], row["metric"]) == ("classification", "accuracy")


def test_resuming_and_extending(labels: Path) -> None:
    shutil.copytree(labels, "copy")
    assert succeed("train", "--resume", "copy", "--steps", "6", "--json").json["steps"] == 6


@pytest.mark.parametrize(
    ("rows", "says"),
    [
        ("text,label\na,x\nb,x\n", ("needs at least two labels", "'x'")),
        ("text,label\na,x\n,y\n", ("bad.csv, line 3", "empty text")),
        ("text,label\na,x\nb\n", ("bad.csv, line 3", "1 column")),
        ("words,label\na,x\n", ("bad.csv, line 1", "one column 'text'")),
    ],
)
def test_bad_texts(rows: str, says: str | tuple[str, ...]) -> None:
    Path("bad.csv").write_text(rows)
    refuse("train", "bad.csv", *FLAGS, "--output", "run", says=says)


def test_other_bad_input(labels: Path) -> None:
    refuse("train", "--task", "classification", says="no labelled texts were given")
    refuse(
        "train", "texts.csv", *FLAGS, "--stack", "encoder_decoder", "--output", "new", says="encoder or decoder does"
    )
    refuse("predict", labels, says="no texts were given")
    refuse("predict", "nowhere", "a", says="there is no run folder nowhere")
    refuse("generate", labels, "a", says=("is a classification run", f"smht predict {labels}"))
    Path("other.csv").write_text("text,label\na,sideways\n")
    refuse("evaluate", labels, "other.csv", says=("label 'sideways'", "do not have"))


def test_predict_is_for_classifiers(run: Path) -> None:
    refuse("predict", run, "a", says=("is a language-modelling run", f"smht generate {run}"))


def test_labels_of_a_text_without_some_heads(labels: Path) -> None:
    found = succeed("ablate", labels, "text 1", "--drop", "0.1", "--json").json
    predicted = succeed("predict", labels, "text 1", "--json").json[0]["probabilities"]
    assert {row["label"]: row["probability_before"] for row in found["labels"]} == pytest.approx(predicted, abs=1e-6)
    assert sum(row["probability_after"] for row in found["labels"]) == pytest.approx(1)
    assert found["loss_before"] is None and found["targets"] == 0
    with_label = succeed("ablate", labels, "text 1", "--drop", "0.1", "--label", "odd", "--json").json
    odd = next(row for row in found["labels"] if row["label"] == "odd")
    assert with_label["loss_before"] == pytest.approx(-math.log(odd["probability_before"]), rel=1e-5)
    assert with_label["loss_after"] == pytest.approx(-math.log(odd["probability_after"]), rel=1e-5)
    lines = succeed("ablate", labels, "text 1", "--freeze", "0.1", "--statistics", "held").out.splitlines()
    assert lines[0] == "freeze layer 0 head 1 at its mean"
    assert [line.split()[0] for line in lines[1:3] + lines[3:5]] == ["label,", "─" * len(lines[2]), "even", "odd"]
    assert lines[5].startswith("norms' statistics held")
    shown = succeed("ablate", labels, "text 1", "--swap", "0.0:0.1", "--label", "odd").out
    assert "nats, mean of 1" in shown and "label, probability" in shown


def test_accuracy_without_some_heads(labels: Path) -> None:
    over = ("ablate", labels, "texts.csv", "--files", "--json")
    evaluated = succeed("evaluate", labels, "texts.csv", "--json").json
    found = succeed(*over, "--drop", "0.0").json
    assert found["before"]["loss"] == pytest.approx(evaluated["loss"], rel=1e-5)
    assert found["before"]["accuracy"] == evaluated["accuracy"]
    assert found["before"]["targets"] == found["texts"] == 40
    ranking = succeed(*over, "--rank").json
    dropped = next(effect for effect in ranking["effects"] if effect["head"] == 0)
    assert (dropped["loss"], dropped["accuracy"]) == (found["after"]["loss"], found["after"]["accuracy"])
    assert "right without it" in succeed("ablate", labels, "texts.csv", "--files", "--rank", "--most", "4").out


def test_what_ablation_of_a_classifier_refuses(labels: Path) -> None:
    refuse("ablate", labels, "text", "--drop", "0.1", "--label", "ood", says=("no label 'ood'", "did you mean odd?"))
    refuse("ablate", labels, "text", "--rank", says="give it with --label")
    refuse("ablate", labels, "text", "--drop", "0.1", "--tokens", says="a classifier writes nothing")
    refuse("ablate", labels, "text", "--drop", "0.1", "--generate", "3", says="a classifier writes nothing")
    refuse(
        "ablate", labels, "text", "--drop", "0.1", "--target", "x", says="--target is for runs of an encoder-decoder"
    )
    refuse("ablate", labels, "", "--drop", "0.1", says="the text is empty")
    refuse("ablate", labels, "x" * 15, "--drop", "0.1", says="the model's 16 positions")
    Path("other.csv").write_text("text,label\na,sideways\n")
    refuse("ablate", labels, "other.csv", "--files", "--rank", says=("label 'sideways'", "do not have"))
