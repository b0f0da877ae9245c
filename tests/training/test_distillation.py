import json
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F

from helpers.errors import refused
from helpers.runs import flip_bit, make_model
from smht.tasks.token_stream import collate
from smht.training.budget import Budget
from smht.training.distillation import Distillation, Recipe, read_distillation
from smht.training.preparation import prepare
from smht.training.run_folder import RunFolder
from smht.training.train import begin, resume

pytestmark = pytest.mark.usefixtures("fixed_costs")


@pytest.fixture
def batch() -> dict:
    ids = torch.randint(259, (2, 9), generator=torch.Generator().manual_seed(0))
    labels = ids[:, 1:].clone()
    labels[0, 3] = -100
    return collate([{"input_ids": i, "labels": row} for i, row in zip(ids[:, :-1], labels, strict=True)])


@pytest.mark.parametrize(("weight", "temperature"), [(0.0, 1.0), (1.0, 1.0), (0.7, 3.0)])
def test_the_loss_against_its_formula(batch: dict, weight: float, temperature: float) -> None:
    student, teacher = make_model(split=()), make_model(hidden_size=12)
    loss = Distillation(teacher, Recipe(weight, temperature)).loss(student, batch)
    counted = batch["labels"] != -100
    ours, theirs = (model.eval()(batch["input_ids"]).logits[counted] for model in (student, teacher))
    cross_entropy = F.cross_entropy(ours, batch["labels"][counted])
    p, q = (logits / temperature for logits in (theirs, ours))
    divergence = (p.softmax(-1) * (p.log_softmax(-1) - q.log_softmax(-1))).sum(-1).mean()
    torch.testing.assert_close(loss, weight * temperature**2 * divergence + (1 - weight) * cross_entropy)
    loss.backward()
    assert all(weight.grad is None for weight in teacher.parameters())


def test_a_model_loses_nothing_to_itself(batch: dict) -> None:
    model = make_model()
    assert abs(Distillation(make_model(), Recipe(1.0, 2.0)).loss(model, batch).item()) < 1e-6


@pytest.mark.parametrize(("weight", "temperature"), [(-0.1, 1.0), (1.1, 1.0), (float("nan"), 1.0)])
def test_weights_that_are_refused(weight: float, temperature: float) -> None:
    with refused("teacher-weight", "from 0 to 1"):
        Recipe(weight, temperature)


@pytest.mark.parametrize("temperature", [0.0, -1.0, float("inf"), float("nan")])
def test_temperatures_that_are_refused(temperature: float) -> None:
    with refused("temperature", "above 0"):
        Recipe(0.5, temperature)


@pytest.fixture
def distil(request_for, tmp_path: Path, quiet):
    def run(name: str, steps: int) -> RunFolder:
        request = request_for(steps=steps)
        prepared = prepare(request)
        teacher = make_model(hidden_size=32)
        budget = Budget(steps=steps)
        begin(prepared, request.to_dict(), budget, tmp_path / name, quiet, Distillation(teacher, Recipe()))
        return RunFolder(tmp_path / name)

    return run


def test_resumed_as_if_never_stopped(distil, quiet) -> None:
    whole, stopped = distil("whole", 12), distil("stopped", 12)
    for checkpoint in ("step-000008", "step-000012"):
        flip_bit(stopped.checkpoints / checkpoint / "model.safetensors", 0.5)
    record = stopped.read_record()
    stopped.write_record({**record, "status": "interrupted"})
    resume(stopped.path, Budget(), {}, quiet)
    ours, theirs = (run.load_model().state_dict() for run in (stopped, whole))
    assert all(torch.equal(ours[name], theirs[name]) for name in theirs)
    losses = [[row["loss"] for row in run.read_metrics()] for run in (stopped, whole)]
    assert losses[0] == losses[1]


def test_a_teacher_that_is_damaged_or_gone(distil) -> None:
    run = distil("run", 4)
    record = run.read_record()
    assert record["distillation"].keys() == {"weight", "temperature", "sha256"}
    assert read_distillation(run, {**record, "distillation": None}) is None
    weights = run.path / "teacher" / "model.safetensors"
    flip_bit(weights, 0.5)
    with refused("the teacher of", "is damaged"):
        read_distillation(run, record)
    weights.unlink()
    with refused("the teacher of", "is gone"):
        read_distillation(run, record)
    assert json.loads(run.record_path.read_text())["status"] == "finished"
