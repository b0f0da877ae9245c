"""Whole runs: begun, stopped, resumed, extended, spoilt."""

import json
import shutil
import signal
import threading
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from rich.console import Console
from safetensors.torch import load_file
from transformers import Trainer

from smht.errors import SmhtError, UsageError
from smht.tasks.language_modelling import WindowedText
from smht.tasks.task import Score
from smht.training import train as training
from smht.training.budget import Budget
from smht.training.calibration import Calibration, calibrate
from smht.training.checkpoint import checkpoint_path, list_checkpoints
from smht.training.parametrisation import MUP_LEARNING_RATE, parameter_groups
from smht.training.run_folder import RunFolder
from smht.training.trainer import SmhtTrainer

pytestmark = pytest.mark.usefixtures("fixed_costs")


def weights(run: Path, step: int) -> dict[str, torch.Tensor]:
    return load_file(checkpoint_path(run / "checkpoints", step) / "model.safetensors")


def assert_same(left: dict[str, torch.Tensor], right: dict[str, torch.Tensor]) -> None:
    assert left.keys() == right.keys()
    for name in left:
        assert torch.equal(left[name], right[name]), name


def state(run: Path, step: int) -> dict[str, object]:
    """Everything that resume needs, in a form that compares."""
    folder = checkpoint_path(run / "checkpoints", step)
    optimizer = torch.load(folder / "optimizer.pt", weights_only=True)
    (moments,) = (folder / "moments").iterdir()
    rates = [group["lr"] for group in optimizer["param_groups"]]
    return {"moments": load_file(moments), "rates": rates, "weights": weights(run, step)}


def assert_same_state(left: dict, right: dict) -> None:
    assert left["rates"] == right["rates"]
    assert_same(left["moments"], right["moments"])
    assert_same(left["weights"], right["weights"])


@pytest.fixture
def stop_after(monkeypatch: pytest.MonkeyPatch):
    """Sends this process a signal during a step, once."""

    def arrange(step: int, number: int = signal.SIGINT) -> None:
        original = SmhtTrainer.training_step
        sent = []

        def training_step(self, *args, **kwargs):
            if self.state.global_step + 1 == step and not sent:
                sent.append(number)
                signal.raise_signal(number)
            return original(self, *args, **kwargs)

        monkeypatch.setattr(SmhtTrainer, "training_step", training_step)

    return arrange


def test_a_run_folder_holds_what_the_design_says(request_for, quiet, tmp_path):
    outcome = training.start(request_for(), tmp_path / "run", quiet)

    assert outcome.status == "finished"
    run = outcome.run
    model, tokenizer = run.load_model(), run.load_tokenizer()
    assert model.config.num_hidden_layers == 2
    assert len(tokenizer) == model.config.vocab_size == 259
    rows = run.read_metrics()
    assert [row["step"] for row in rows if row["validation_loss"] is not None] == [4, 8, 12]
    assert rows[-1].keys() == {
        "step",
        "tokens",
        "seconds",
        "loss",
        "validation_loss",
        "bits_per_byte",
        "learning_rate",
        "tokens_per_second",
    }
    record = json.loads((run.path / "run.json").read_text())
    assert record["status"] == "finished"
    assert record["asked"]["context"] == 16
    assert record["results"]["best_step"] in (4, 8, 12)
    assert [path.name for path in list_checkpoints(run.checkpoints)] == ["step-000004", "step-000008", "step-000012"]


def test_the_model_at_the_root_is_the_best_by_validation_loss(request_for, quiet, tmp_path, monkeypatch):
    losses = iter([3.0, 1.0, 2.0])

    def fake_score(*args, **options):
        return Score(next(losses), {"bits_per_byte": 1.0})

    monkeypatch.setattr(WindowedText, "score", fake_score)
    outcome = training.start(request_for(), tmp_path / "run", quiet)

    assert outcome.record["results"]["best_step"] == 8
    assert outcome.record["results"]["validation_loss"] == 1.0
    assert_same(load_file(tmp_path / "run" / "model.safetensors"), weights(tmp_path / "run", 8))


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_run_that_was_interrupted_ends_as_if_it_had_not_been(request_for, quiet, tmp_path, stop_after, number):
    whole = training.start(request_for(), tmp_path / "whole", quiet)
    stop_after(6, number)
    cut = training.start(request_for(), tmp_path / "cut", quiet)
    assert cut.status == "interrupted"
    assert [path.name for path in list_checkpoints(cut.run.checkpoints)] == ["step-000004", "step-000006"]

    resumed = training.resume(tmp_path / "cut", Budget(), {}, quiet)

    assert resumed.status == "finished"
    assert_same_state(state(tmp_path / "whole", 12), state(tmp_path / "cut", 12))
    assert_same(load_file(whole.run.path / "model.safetensors"), load_file(resumed.run.path / "model.safetensors"))
    assert resumed.record["results"]["best_step"] == whole.record["results"]["best_step"]
    whole_rows = {row["step"]: row for row in whole.run.read_metrics()}
    for row in resumed.run.read_metrics():
        if row["step"] in whole_rows:
            assert row["validation_loss"] == whole_rows[row["step"]]["validation_loss"]


@pytest.mark.parametrize("damage", ["truncate", "flip", "remove", "no manifest"])
def test_a_damaged_newest_checkpoint_is_named_and_the_one_before_it_used(request_for, tmp_path, quiet, damage):
    training.start(request_for(), tmp_path / "run", quiet)
    expected = weights(tmp_path / "run", 12)
    newest = checkpoint_path(tmp_path / "run" / "checkpoints", 12)
    victim = newest / ("manifest.json" if damage == "no manifest" else "optimizer.pt")
    content = victim.read_bytes()
    if damage == "truncate":
        victim.write_bytes(content[: len(content) // 2])
    elif damage == "flip":
        victim.write_bytes(content[:500] + bytes([content[500] ^ 1]) + content[501:])
    else:
        victim.unlink()
    log = tmp_path / "log"

    with log.open("w") as file:
        training.resume(tmp_path / "run", Budget(), {}, Console(file=file, width=200))

    assert f"step-000012/{victim.name}" in log.read_text()
    assert_same(expected, weights(tmp_path / "run", 12))


def test_a_checkpoint_of_another_version_is_said_to_be(request_for, tmp_path, quiet, stop_after):
    stop_after(6)
    training.start(request_for(), tmp_path / "run", quiet)
    newest = list_checkpoints(tmp_path / "run" / "checkpoints")[-1]
    manifest = json.loads((newest / "manifest.json").read_text())
    for name in [name for name in manifest["sha256"] if name.startswith("moments/")]:
        del manifest["sha256"][name]
    (newest / "manifest.json").write_text(json.dumps(manifest))
    shutil.rmtree(newest / "moments")

    with pytest.raises(SmhtError, match="moments is missing: another version of smht wrote this checkpoint"):
        training.resume(tmp_path / "run", Budget(), {}, quiet)


def test_with_every_checkpoint_damaged_the_run_begins_again_and_ends_the_same(request_for, quiet, tmp_path, stop_after):
    training.start(request_for(), tmp_path / "whole", quiet)
    expected = weights(tmp_path / "whole", 12)
    stop_after(6)
    training.start(request_for(), tmp_path / "run", quiet)
    for checkpoint in list_checkpoints(tmp_path / "run" / "checkpoints"):
        (checkpoint / "trainer_state.json").unlink()

    training.resume(tmp_path / "run", Budget(), {}, quiet)

    assert_same(expected, weights(tmp_path / "run", 12))


def test_a_finished_run_can_be_extended(request_for, quiet, tmp_path):
    training.start(request_for(), tmp_path / "run", quiet)
    with pytest.raises(UsageError, match="has finished its 12 steps"):
        training.resume(tmp_path / "run", Budget(), {}, quiet)
    with pytest.raises(UsageError, match="leaves nothing to do"):
        training.resume(tmp_path / "run", Budget(steps=12), {}, quiet)

    outcome = training.resume(tmp_path / "run", Budget(steps=20), {}, quiet)

    rows = {row["step"]: row for row in outcome.run.read_metrics()}
    assert max(rows) == 20 and outcome.record["settings"]["steps"] == 20
    # A cosine over 20 steps stands higher after 12 than one over 12, and both end at a tenth of the peak.
    assert rows[13]["learning_rate"] > rows[12]["learning_rate"] * 2
    assert rows[20]["learning_rate"] == pytest.approx(0.1 * 0.02, rel=0.1)


def test_a_run_from_another_starts_with_its_weights(request_for, quiet, tmp_path):
    first = training.start(request_for(), tmp_path / "first", quiet)
    request = request_for(
        1, from_run=str(tmp_path / "first"), tokenizer=None, architecture={}, learning_rate=1e-12, weight_decay=0.0
    )

    second = training.start(request, tmp_path / "second", quiet)

    start = weights(tmp_path / "second", 0)
    assert_same(start, load_file(first.run.path / "model.safetensors"))
    assert second.record["asked"]["from_run"] == str(tmp_path / "first")


def test_a_run_from_another_resumes_from_the_weights_that_it_began_with(request_for, quiet, tmp_path, stop_after):
    training.start(request_for(), tmp_path / "first", quiet)
    request = request_for(from_run=str(tmp_path / "first"), tokenizer=None, architecture={})
    training.start(request, tmp_path / "whole", quiet)
    stop_after(6)
    training.start(request, tmp_path / "cut", quiet)
    checkpoints = list_checkpoints(tmp_path / "cut" / "checkpoints")
    assert [path.name for path in checkpoints] == ["step-000000", "step-000004", "step-000006"]
    for checkpoint in checkpoints[1:]:
        (checkpoint / "manifest.json").unlink()

    training.resume(tmp_path / "cut", Budget(), {}, quiet)

    assert_same(weights(tmp_path / "whole", 12), weights(tmp_path / "cut", 12))


def test_a_run_from_another_without_a_whole_checkpoint_cannot_be_resumed(request_for, quiet, tmp_path, stop_after):
    training.start(request_for(), tmp_path / "first", quiet)
    request = request_for(from_run=str(tmp_path / "first"), tokenizer=None, architecture={})
    stop_after(6)
    training.start(request, tmp_path / "second", quiet)
    for checkpoint in list_checkpoints(tmp_path / "second" / "checkpoints"):
        (checkpoint / "manifest.json").unlink()
    with pytest.raises(UsageError, match=r"no whole checkpoint, and its first weights"):
        training.resume(tmp_path / "second", Budget(), {}, quiet)


@pytest.mark.parametrize("where", ["loss", "gradient"])
def test_a_loss_that_is_no_number_stops_before_the_step(request_for, quiet, tmp_path, monkeypatch, where):
    whole = training.start(request_for(), tmp_path / "whole", quiet)
    original = Trainer.training_step

    def spoilt(self, *args, **kwargs):
        loss = original(self, *args, **kwargs)
        if self.state.global_step + 1 == 9 and where == "gradient":
            next(self.model.parameters()).grad.fill_(torch.inf)
        return loss * torch.nan if self.state.global_step + 1 == 9 and where == "loss" else loss

    monkeypatch.setattr(Trainer, "training_step", spoilt)
    with pytest.raises(SmhtError, match=r"became (nan|inf) at step 9") as caught:
        training.start(request_for(), tmp_path / "run", quiet)

    assert "\n" not in str(caught.value) and caught.value.exit_code == 1
    assert_same(weights(tmp_path / "run", 8), weights(whole.run.path, 8))
    assert RunFolder(tmp_path / "run").read_record()["status"] == "failed"


def test_text_that_changed_since_the_run_began_is_refused(request_for, quiet, tmp_path, text, stop_after):
    stop_after(6)
    training.start(request_for(), tmp_path / "run", quiet)
    text.write_text(text.read_text(encoding="utf-8") + "more", encoding="utf-8")
    with pytest.raises(UsageError, match="has changed since the run began"):
        training.resume(tmp_path / "run", Budget(), {}, quiet)


def test_resume_refuses_other_settings_and_accepts_the_same(request_for, quiet, tmp_path, stop_after):
    stop_after(6)
    training.start(request_for(), tmp_path / "run", quiet)
    with pytest.raises(UsageError, match=r"has batch_size = 2.*leave batch_size = 3 out"):
        training.resume(tmp_path / "run", Budget(), {"batch_size": 3}, quiet)
    with pytest.raises(UsageError, match="has mixing = shuffle"):
        training.resume(tmp_path / "run", Budget(), {"mixing": "none"}, quiet)
    same = {"batch_size": 2, "seed": 0, "mixing": "shuffle", "hidden_size": 16, "tokenizer": "byte", "device": "cpu"}
    assert training.resume(tmp_path / "run", Budget(), same, quiet).status == "finished"


def test_a_time_budget_becomes_a_number_of_steps_that_resume_keeps(
    request_for, quiet, tmp_path, stop_after, monkeypatch
):
    monkeypatch.setattr(training, "calibrate", lambda *args: Calibration(0.5, 0.1, 1))
    stop_after(6)
    cut = training.start(request_for(budget=Budget(seconds=6.0)), tmp_path / "run", quiet)
    assert cut.record["settings"]["steps"] == 11  # 6 s / (0.5 s a step + 0.1 s an evaluation every 4 steps)
    monkeypatch.setattr(training, "calibrate", lambda *args: Calibration(5.0, 1.0, 1))
    assert training.resume(tmp_path / "run", Budget(), {}, quiet).record["results"]["steps"] == 11


def test_nothing_is_written_when_the_disk_is_too_small(request_for, quiet, tmp_path, monkeypatch):
    monkeypatch.setattr("smht.training.files.free_bytes", lambda path: 1000)
    with pytest.raises(UsageError, match="1 kB are free"):
        training.start(request_for(), tmp_path / "run", quiet)
    assert not (tmp_path / "run").exists()


def test_calibration_leaves_no_trace_in_the_weights(request_for, quiet, tmp_path, monkeypatch):
    training.start(request_for(), tmp_path / "without", quiet)
    monkeypatch.setattr(training, "calibrate", calibrate)
    training.start(request_for(), tmp_path / "with", quiet)
    assert_same(weights(tmp_path / "with", 12), weights(tmp_path / "without", 12))


@pytest.mark.parametrize("budget", [Budget(), Budget(steps=20)])
def test_a_finished_run_whose_checkpoints_are_gone_is_left_alone(request_for, quiet, tmp_path, budget):
    training.start(request_for(), tmp_path / "run", quiet)
    before = load_file(tmp_path / "run" / "model.safetensors")
    for checkpoint in list_checkpoints(tmp_path / "run" / "checkpoints"):
        shutil.rmtree(checkpoint)
    with pytest.raises(UsageError, match="finished and has no whole checkpoint to go on from"):
        training.resume(tmp_path / "run", budget, {}, quiet)
    assert_same(before, load_file(tmp_path / "run" / "model.safetensors"))
    assert RunFolder(tmp_path / "run").read_metrics()


def test_a_run_can_go_into_the_empty_folder_where_its_user_stands(request_for, quiet, tmp_path, monkeypatch):
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    assert training.start(request_for(2), Path(), quiet).status == "finished"
    assert (tmp_path / "here" / "run.json").exists() and Path("model.safetensors").exists()


def test_a_run_in_training_cannot_be_resumed_by_another_process(request_for, quiet, tmp_path, stop_after):
    stop_after(6)
    training.start(request_for(), tmp_path / "run", quiet)
    with RunFolder(tmp_path / "run").locked(), pytest.raises(UsageError, match="trained by another process"):
        training.resume(tmp_path / "run", Budget(), {}, quiet)


def test_training_works_outside_the_main_thread(request_for, quiet, tmp_path):
    outcomes = []
    worker = threading.Thread(target=lambda: outcomes.append(training.start(request_for(2), tmp_path / "run", quiet)))
    worker.start()
    worker.join()
    assert outcomes[0].status == "finished"


def test_mup_trains_by_fan_in_and_resumes_exactly(request_for, quiet, tmp_path, stop_after):
    request = request_for(parametrisation="mup")
    whole = training.start(request, tmp_path / "whole", quiet)
    assert whole.record["settings"]["parametrisation"] == "mup"
    assert whole.record["settings"]["learning_rate"] == MUP_LEARNING_RATE
    assert whole.run.read_metrics()[0]["learning_rate"] <= MUP_LEARNING_RATE
    model = whole.run.load_model()
    rates = {group["lr"] for group in parameter_groups(model, 1.0, 0.1, "mup")}
    saved = state(whole.run.path, 12)
    assert rates == {1.0, 8.0}  # of embeddings and norms; of blocks with 4 inputs, and the norm before the tied head
    assert sorted({rate / saved["rates"][0] for rate in saved["rates"]}) == pytest.approx(sorted(rates))

    stop_after(6)
    training.start(request, tmp_path / "stopped", quiet)
    training.resume(tmp_path / "stopped", Budget(), {}, quiet)
    assert_same_state(state(tmp_path / "stopped", 12), saved)


def test_fine_tuning_with_mup_leaves_the_first_weights_alone(request_for, quiet, tmp_path, monkeypatch):
    training.start(request_for(4), tmp_path / "first", quiet)
    request = request_for(4, from_run=str(tmp_path / "first"), architecture={}, context=None, parametrisation="mup")
    request = replace(request, tokenizer=None)
    second = training.start(request, tmp_path / "second", quiet)
    first = load_file(tmp_path / "first/model.safetensors")
    assert_same(weights(second.run.path, 0), first)
