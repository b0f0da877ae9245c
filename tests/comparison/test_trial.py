from dataclasses import replace
from pathlib import Path

import pytest
import torch

from helpers.comparisons import make_request, without_time
from smht.comparison.loop import Training
from smht.comparison.record import conditions_of, new_record
from smht.comparison.setting import Setting, prepare
from smht.comparison.trial import Conditions, Trial, TrialRun
from smht.inspection.accounting import account
from smht.models import SmhtConfig

SLICE = 1e-9  # one step


@pytest.fixture
def setting(text: Path) -> Setting:
    return prepare(make_request(text))


@pytest.fixture
def conditions(setting: Setting) -> Conditions:
    return replace(conditions_of(new_record(setting)), evaluation_windows=5)


@pytest.fixture
def trial(setting: Setting) -> Trial:
    return setting.final_trials(3, {"split+shuffle": 0.01})[0]


def finish(run: TrialRun, slice_seconds: float = 1e9) -> TrialRun:
    while run.outcome is None:
        run.advance(slice_seconds)
    return run


def test_a_trial_says_what_it_came_to(setting: Setting, conditions: Conditions, trial: Trial) -> None:
    result = finish(TrialRun(trial, setting.examples, conditions)).outcome
    assert result is not None
    costs = account(SmhtConfig(**trial.config))
    assert (result.status, result.error, result.seed, result.learning_rate) == ("done", None, 3, 0.01)
    assert (result.steps, result.tokens) == (20, 640)
    assert result.parameters == costs.total.parameters
    assert result.parameters_without_embeddings == result.parameters - 259 * 16  # tied, and rotary positions have none
    assert result.multiply_adds_per_token == costs.total.multiply_adds
    assert result.cache_bytes_per_token == 2 * 16 * 4
    assert result.training_multiply_adds == 3 * costs.total.multiply_adds * 640
    assert result.repeats == pytest.approx(40 / setting.examples.items_per_epoch)
    assert result.tokens_per_second == pytest.approx(640 / result.seconds)
    assert [point["step"] for point in result.curve] == [2, 4, 6, 8, 10, 12, 14, 16, 18, 20]
    assert [point["tokens"] for point in result.curve] == [32 * point["step"] for point in result.curve]
    assert result.curve[-1]["validation_loss"] == result.validation_loss
    assert result.curve[-1]["bits_per_byte"] == result.bits_per_byte


def test_the_last_evaluation_is_over_everything_and_others_over_a_part(
    setting: Setting, conditions: Conditions, trial: Trial
) -> None:
    run = finish(TrialRun(trial, setting.examples, conditions))
    assert run.outcome is not None
    model = run.training.model
    assert setting.examples.score(model).loss == run.outcome.validation_loss
    whole = finish(TrialRun(trial, setting.examples, replace(conditions, evaluation_windows=None)))
    assert whole.outcome is not None
    assert whole.outcome.validation_loss == run.outcome.validation_loss
    assert all(a != b for a, b in zip(run.curve[:-1], whole.curve[:-1], strict=True))


def test_slices_saving_and_other_trials_in_between_change_nothing(
    setting: Setting, conditions: Conditions, trial: Trial, tmp_path: Path
) -> None:
    undisturbed = finish(TrialRun(trial, setting.examples, conditions))
    torch.manual_seed(99)
    other = TrialRun(replace(trial, seed=8), setting.examples, conditions)
    run = TrialRun(trial, setting.examples, conditions)
    for step in range(6):  # after the third point of the curve
        run.advance(SLICE)
        other.advance(SLICE)
        assert run.training.steps == step + 1
    run.save(tmp_path / "state")
    run.advance(SLICE)  # lost
    again = TrialRun(trial, setting.examples, conditions)
    assert again.restore(tmp_path / "state") == ()
    assert again.training.steps == 6
    finish(again, SLICE)
    assert undisturbed.outcome is not None and again.outcome is not None
    assert without_time(again.outcome) == without_time(undisturbed.outcome)
    weights = zip(again.training.model.parameters(), undisturbed.training.model.parameters(), strict=True)
    assert all(torch.equal(ours, theirs) for ours, theirs in weights)


def test_the_process_keeps_its_random_numbers(setting: Setting, conditions: Conditions, trial: Trial) -> None:
    torch.manual_seed(5)
    expected = torch.rand(3)
    torch.manual_seed(5)
    finish(TrialRun(trial, setting.examples, conditions))
    assert torch.equal(torch.rand(3), expected)


def test_seconds_are_those_of_training_and_decide_where_they_are_the_budget(
    setting: Setting, conditions: Conditions, trial: Trial, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = iter(range(10**6))
    monkeypatch.setattr("smht.comparison.loop.time.perf_counter", lambda: float(next(clock)))
    timed = replace(trial, steps=None, seconds=30.0)
    run = TrialRun(timed, setting.examples, conditions)
    rates = []
    while run.outcome is None:
        run.advance(5.0)
        rates.append(run.training._optimizer.param_groups[0]["lr"])
    assert run.outcome.steps == run.outcome.seconds == 30  # a step takes from one look at the clock to the next
    assert [point["seconds"] for point in run.outcome.curve] == [3, 6, 9, 12, 15, 18, 21, 24, 27, 30]
    assert max(rates) <= 0.01 and rates[-1] < 0.0012


def test_a_loss_that_is_no_number_ends_it(
    setting: Setting, conditions: Conditions, trial: Trial, monkeypatch: pytest.MonkeyPatch
) -> None:
    step = Training.step

    def diverge(self: Training) -> float:
        loss = step(self)
        return float("inf") if self.steps == 5 else loss

    monkeypatch.setattr(Training, "step", diverge)
    result = finish(TrialRun(trial, setting.examples, conditions)).outcome
    assert result is not None
    assert (result.status, result.error) == ("diverged", "the loss became inf at step 5")
    assert (result.validation_loss, result.bits_per_byte, result.steps) == (None, None, 5)
    assert [point["step"] for point in result.curve] == [2, 4]
    result.to_json()


def test_a_validation_loss_that_is_no_number_ends_it(setting: Setting, conditions: Conditions, trial: Trial) -> None:
    run = TrialRun(trial, setting.examples, conditions)
    run.advance(SLICE)
    with torch.no_grad():
        run.training.model.model.norm.weight.fill_(torch.nan)  # pyright: ignore
    run._finish()
    assert run.outcome is not None
    assert (run.outcome.status, run.outcome.curve) == ("diverged", [])
    assert run.outcome.error == "the validation loss became nan at step 1"


def test_a_damaged_checkpoint_is_named_and_not_used(
    setting: Setting, conditions: Conditions, trial: Trial, tmp_path: Path
) -> None:
    run = TrialRun(trial, setting.examples, conditions)
    run.advance(SLICE)
    run.save(tmp_path / "state")
    path = tmp_path / "state" / "step-000001" / "state.pt"
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)
    again = TrialRun(trial, setting.examples, conditions)
    (line,) = again.restore(tmp_path / "state")
    assert "step-000001/state.pt is damaged" in line
    assert again.training.steps == 0


def test_all_that_determines_a_trial_is_in_its_key(conditions: Conditions, trial: Trial) -> None:
    changes = {
        "variant": "other",
        "config": {**trial.config, "hidden_act": "relu"},
        "purpose": "search",
        "seed": 4,
        "learning_rate": 0.02,
        "parametrisation": "mup",
        "steps": 21,
        "seconds": 1.0,
        "evaluations": 9,
    }
    keys = {replace(trial, **{name: value}).key(conditions) for name, value in changes.items()}
    assert len(keys) == len(changes) == len(Trial.__dataclass_fields__)
    for name, value in {"context": 8, "batch_size": 3, "data": ("a", "b", "c"), "evaluation_windows": 6}.items():
        keys.add(trial.key(replace(conditions, **{name: value})))
    assert trial.key(conditions) not in keys
    assert len(keys) == len(changes) + 4
    assert trial.key(replace(conditions, threads=7, backend="x", device="cuda")) == trial.key(conditions)
