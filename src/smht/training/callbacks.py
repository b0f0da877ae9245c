"""When to log, evaluate and save; what is kept of it."""

import time
from collections.abc import Callable, Sequence
from typing import Any

from transformers import PreTrainedModel, TrainerControl, TrainerState, TrainingArguments
from transformers.trainer_callback import TrainerCallback

from smht.distributed.processes import Processes
from smht.training.interrupt import StopRequest
from smht.training.run_folder import RunFolder, find_best, writing


class Schedule(TrainerCallback):
    """Logs every few steps; evaluates and saves more rarely, at the end, and when asked to stop.

    Args:
        log_every: steps between logged rows.
        evaluate_every: steps between evaluations, each with a checkpoint.
        stop: tells whether to stop.
        processes: stop together where one is asked to.
    """

    def __init__(self, log_every: int, evaluate_every: int, stop: StopRequest, processes: Processes) -> None:
        self.log_every, self.evaluate_every, self.stop, self.processes = log_every, evaluate_every, stop, processes

    def on_step_end(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        """Decide what follows this step."""
        step = state.global_step
        is_last = step >= state.max_steps
        control.should_evaluate = is_last or step % self.evaluate_every == 0
        control.should_training_stop = self.processes.any(self.stop.received is not None) or is_last
        control.should_save = control.should_evaluate or control.should_training_stop
        control.should_log = control.should_save or step % self.log_every == 0


class SaveAtStart(TrainerCallback):
    """Saves a checkpoint before the first step: of weights that nothing else can bring back.

    Args:
        save: saves it.
    """

    def __init__(self, save: Callable[[], None]) -> None:
        self.save = save

    def on_train_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Save."""
        self.save()


class Recorder(TrainerCallback):
    """Writes `metrics.jsonl`, keeps the best model, and tells the display.

    Args:
        run: the run's folder.
        tokens_per_step: on average.
        metrics: names of the task's metrics that each evaluation gives.
        rows: the rows of a run that goes on, so far.
        show: is given each row.
    """

    def __init__(
        self,
        run: RunFolder,
        tokens_per_step: float,
        metrics: Sequence[str],
        rows: list[dict[str, Any]],
        show: Callable[[dict[str, Any]], None],
    ) -> None:
        self.run, self.tokens_per_step, self.metrics, self.show = run, tokens_per_step, metrics, show
        self.best = find_best(rows)
        self._earlier_seconds = rows[-1]["seconds"] if rows else 0.0
        self._started = time.perf_counter()
        self._step_started = self._started
        self._training_seconds = 0.0
        self._steps_since_row = 0
        self._row: dict[str, Any] | None = None

    def on_train_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Start the clock."""
        self._started = time.perf_counter()

    def on_step_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Start the clock of a step: tokens per second leave evaluation and saving out."""
        self._step_started = time.perf_counter()

    def on_step_end(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        """Stop the clock of a step."""
        self._training_seconds += time.perf_counter() - self._step_started
        self._steps_since_row += 1

    def on_log(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        logs: dict[str, float] | None = None,
        **kwargs: Any,
    ) -> None:
        """Begin the row of a step; an evaluation of the same step completes it."""
        if not logs or "loss" not in logs:
            return
        rate = self._steps_since_row * self.tokens_per_step / max(self._training_seconds, 1e-9)
        self._training_seconds, self._steps_since_row = 0.0, 0
        self._row = {
            "step": state.global_step,
            "tokens": round(state.global_step * self.tokens_per_step),
            "seconds": round(self._earlier_seconds + time.perf_counter() - self._started, 3),
            "loss": logs["loss"],
            "validation_loss": None,
            **dict.fromkeys(self.metrics),
            "learning_rate": logs["learning_rate"],
            "tokens_per_second": round(rate),
        }
        if not control.should_evaluate:
            self._finish_row()

    def on_evaluate(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        metrics: dict[str, float] | None = None,
        model: PreTrainedModel | None = None,
        **kwargs: Any,
    ) -> None:
        """Complete the row, and keep the model if it is the best so far."""
        assert self._row is not None and metrics is not None and model is not None
        self._row["validation_loss"] = metrics["eval_loss"]
        self._row.update({name: metrics[f"eval_{name}"] for name in self.metrics})
        if self.best is None or self._row["validation_loss"] < self.best["validation_loss"]:
            self.best = self._row
            with writing("the best model"):
                self.run.save_model(model)
        self._finish_row()

    def _finish_row(self) -> None:
        assert self._row is not None
        self.run.append_metrics(self._row)
        self.show(self._row)
        self._row = None
