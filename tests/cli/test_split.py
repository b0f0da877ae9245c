"""`smht split` and `smht dense`: from dense runs to split ones and back."""

import json
import shutil
from pathlib import Path

import pytest
import torch
from _pytest.monkeypatch import MonkeyPatch

from helpers.command_line import FOUR_STEPS, TINY, refuse, smht, succeed
from helpers.runs import edit_json, truncate
from helpers.together import untimed
from smht.conversion import source, splitting
from smht.training.interrupt import StopRequest
from smht.training.run_folder import RunFolder

DENSE = ("--split", "none")


@pytest.fixture(scope="module")
def dense_run(tmp_path_factory: pytest.TempPathFactory, text: bytes) -> Path:
    """A finished dense run of four steps; not to be changed."""
    folder = tmp_path_factory.mktemp("dense")
    (folder / "text.txt").write_bytes(text)
    with MonkeyPatch.context() as patches, untimed():
        patches.chdir(folder)
        succeed("train", "text.txt", *TINY, *FOUR_STEPS, *DENSE, "--output", "dense")
    return folder / "dense"


@pytest.fixture
def dense(dense_run: Path, workplace: Path) -> Path:
    """A copy of it in the working directory, called `dense`."""
    shutil.copytree(dense_run, workplace / "dense")
    return Path("dense")


def test_from_dense_to_split(dense: Path) -> None:
    result = succeed(
        "split", dense, "--output", "new", "--heads", "2", "--tokens", "0.1k", "--mixing", "shuffle", "--json"
    )
    stages = {stage["stage"]: stage for stage in result.json["stages"]}
    assert list(stages) == ["dense", "permuted", "cut, unpermuted", "cut", "distilled", "from scratch"]
    losses = {name: stage["scores"]["validation_loss"] for name, stage in stages.items()}
    assert losses["permuted"] == pytest.approx(losses["dense"], abs=1e-5)
    assert losses["dense"] == pytest.approx(RunFolder(dense).read_record()["results"]["validation_loss"], abs=1e-6)
    assert stages["cut, unpermuted"]["share_kept"] <= stages["cut"]["share_kept"] < 1
    assert losses["distilled"] < losses["cut"]
    assert stages["distilled"]["tokens"] == stages["from scratch"]["tokens"] == 128
    assert stages["cut"]["parameters"] < stages["dense"]["parameters"]
    assert json.loads(Path("new/split.json").read_text()) == result.json
    config = RunFolder("new").load_config()
    assert (config.split, config.mixing) == (("qkv", "output", "feed_forward"), "shuffle")


def test_all_commands_take_a_split_run(dense: Path) -> None:
    out = succeed("split", dense, "--output", "new", "--steps", "2", "--no-scratch").out
    assert "weight kept" in out and "from scratch" not in out and "smht generate new" in out
    succeed("evaluate", "new", "text.txt")
    succeed("generate", "new", "def ", "--max-new-tokens", "2")
    succeed("trace", "new", "def")
    succeed("summary", "new")
    assert succeed("runs", ".", "--json").json[0]["run"] in ("new", "dense")
    shutil.rmtree(dense)  # the teacher is in the run
    assert succeed("train", "--resume", "new", "--steps", "3", "--json").json["steps"] == 3
    succeed("train", "text.txt", "--from", "new", "--steps", "1", "--output", "further")


def test_the_cut_alone(dense: Path) -> None:
    report = succeed("split", dense, "--output", "new", "--tokens", "0", "--json").json
    assert [stage["stage"] for stage in report["stages"]][-1] == "cut"
    loss = succeed("evaluate", "new", "text.txt", "--json").json["loss"]
    assert loss > 0
    row = next(row for row in succeed("runs", ".", "--json").json if row["run"] == "new")
    assert row["validation_loss"] == pytest.approx(report["stages"][-1]["scores"]["validation_loss"])
    refuse("train", "--resume", "new", "--steps", "9", says="--from new")
    again = succeed("split", dense, "--output", "new", "--tokens", "0", "--json").json
    assert again == report


def test_the_same_command_goes_on_after_a_stop(dense: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    command = ("split", dense, "--output", "new", "--steps", "3", "--json")
    with monkeypatch.context() as patches:
        patches.setattr(StopRequest, "received", property(lambda self: 2, lambda self, value: None), raising=False)
        result = smht(*command)
    assert result.code == 130
    assert "go on with: smht split dense --output new --steps 3" in result.err
    assert not Path("new/split.json").exists()
    report = succeed(*command).json
    whole = succeed("split", dense, "--output", "other", "--steps", "3", "--json").json
    assert report["stages"] == whole["stages"]


def test_from_split_to_dense_and_on(copied_run: Path) -> None:
    made = succeed("dense", "copy", "--output", "new", "--json").json
    assert made["largest_difference"] < 1e-5
    assert made["parameters"]["dense"] > made["parameters"]["split"]
    losses = [succeed("evaluate", name, "text.txt", "--json").json["loss"] for name in ("copy", "new")]
    assert losses[0] == pytest.approx(losses[1], abs=1e-5)
    assert succeed("runs", ".", "--json").json[0]["validation_loss"] is not None
    succeed("train", "text.txt", "--from", "new", "--steps", "2", "--learning-rate", "0.01", "--output", "further")
    config = RunFolder("further").load_config()
    assert config.split == ()
    weight = RunFolder("further").load_model().model.layers[0].mlp.up_proj.weight
    assert torch.count_nonzero(weight) == weight.numel()  # full matrices learn everywhere
    assert "next: smht train TEXT --from 'one more'" in succeed("dense", "copy", "--output", "one more").out


def test_runs_that_are_refused(dense: Path, copied_run: Path, train) -> None:
    output = ("--output", "new")
    refuse("split", "copy", *output, says=("copy: the model is split already", "smht dense"))
    refuse("dense", "dense", *output, says=("dense: the model is dense already"))
    refuse("split", "nowhere", *output, says="no run folder nowhere")
    refuse("dense", "nowhere", *output, says="no run folder nowhere")
    for heads in ("3", "4", "0"):
        refuse("split", "dense", "--heads", heads, *output, says=(f"heads = {heads}", "attends with 2", "give 2"))
    for seed in ("-1", "4294967296"):
        refuse("split", "dense", "--seed", seed, *output, says=f"seed = {seed} must be from 0 to 4294967295")
    refuse("split", "dense", "--split", "qvk", *output, says="did you mean qkv?")
    refuse("split", "dense", "--split", "none", *output, says="split names no projection")
    refuse("split", "dense", "--tokens", "-1", *output, says="tokens=-1 is no amount")
    refuse("split", "dense", "--tokens", "5", "--steps", "5", *output, says="--tokens is a budget too")
    refuse("split", "dense", "--steps", "5", "--time", "5s", *output, says="both budgets")
    refuse("split", "dense", "--learning-rate", "0", *output, says="learning-rate = 0")
    refuse("split", "dense", "--teacher-weight", "2", *output, says="teacher-weight = 2")
    refuse("split", "dense", "--temperature", "0", *output, says="temperature = 0")
    train(*DENSE, "--intermediate-size", "33", "--output", "odd")
    refuse("split", "odd", *output, says=("intermediate_size = 33", "nearest are 32 and 34"))
    train(*DENSE, "--num-attention-heads", "1", "--output", "single")
    refuse("split", "single", *output, says="one head")


@pytest.mark.parametrize("command", [("split", "dense"), ("dense", "copy")])
def test_nothing_is_overwritten(dense: Path, copied_run: Path, command: tuple[str, ...]) -> None:
    Path("folder").mkdir()
    Path("folder/file").touch()
    shutil.copytree("copy", "a copy")
    refuse(*command, "--output", "a copy", says=("a copy already holds a run", "smht train --resume 'a copy'"))
    refuse(*command, "--output", "folder", says="is not an empty folder")
    refuse(*command, "--output", "text.txt", says="name another --output")
    refuse(*command, "--output", "text.txt/new", says="text.txt is a file")


def test_damaged_runs(dense: Path, train) -> None:
    shutil.copytree(dense, "spoilt")
    truncate(Path("spoilt/model.safetensors"), 0.5)
    refuse("split", "spoilt", "--output", "new", says="spoilt/model.safetensors is damaged")
    shutil.copytree(dense, "recordless")
    Path("recordless/run.json").unlink()
    refuse("split", "recordless", "--output", "new", says="recordless holds no run")
    train(*DENSE, "--output", "own")
    Path("text.txt").write_text("another text\n" * 100)
    refuse("split", "own", "--tokens", "0", "--output", "new", says="the text of own has changed")


@pytest.mark.parametrize("command", [("split", "dense"), ("dense", "copy")])
def test_no_room(dense: Path, copied_run: Path, monkeypatch: pytest.MonkeyPatch, command: tuple[str, ...]) -> None:
    for module in (source, splitting):
        monkeypatch.setattr(module.files, "free_bytes", lambda path: 1000)
    refuse(*command, "--output", "new", says=("new needs", "of disk", "1 kB are free"))


def test_a_norm_a_head(train) -> None:
    train("--norm-scope", "head", "--mixing", "shuffle", "--num-hidden-layers", "2", "--output", "shuffled")
    refuse("dense", "shuffled", "--output", "new", says="there is none that computes the same")
    train(*DENSE, "--norm-scope", "head", "--output", "headed")
    refuse("split", "headed", "--mixing", "shuffle", "--output", "new", says="norm_scope = 'head'")
    out = succeed("split", "headed", "--steps", "1", "--no-scratch", "--output", "new").out
    assert "stayed in their places" in out


def test_a_report_of_another_request_is_kept(dense: Path) -> None:
    succeed("split", dense, "--output", "new", "--tokens", "0")
    refuse("split", dense, "--output", "new", "--tokens", "0", "--mixing", "shuffle", says="new already holds a run")
    edit_json(Path("new/run.json"), conversion=None)
    refuse("split", dense, "--output", "new", "--tokens", "0", says="new already holds a run")
