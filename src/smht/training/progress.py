"""What a person sees of a run on standard error: a bar where there is a terminal, a line an evaluation everywhere."""

import time
from types import TracebackType
from typing import Any, Self

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn

from smht.tasks.task import Task
from smht.training.quantities import format_duration


class TrainingDisplay:
    """Shows rows of metrics as they come.

    Args:
        console: where to, standard error as a rule.
        steps: the last step.
        first_step: steps already taken when this process began.
        task: tells what the loss is in and how its metrics are written.
    """

    def __init__(self, console: Console, steps: int, first_step: int, task: Task) -> None:
        self.console, self.steps, self.first_step, self.task = console, steps, first_step, task
        self._bar = Progress(
            TextColumn("step {task.completed}/{task.total}"),
            BarColumn(bar_width=20),
            TaskProgressColumn(),
            TextColumn("{task.description}"),
            console=console,
            transient=True,
            disable=not console.is_terminal,
        )
        self._task = self._bar.add_task("", total=steps, completed=first_step)
        self._started = time.perf_counter()

    def __enter__(self) -> Self:
        self._started = time.perf_counter()
        self._bar.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._bar.stop()

    def show(self, row: dict[str, Any]) -> None:
        """Move the bar and, where the row holds an evaluation, print it."""
        left = self._time_left(row["step"])
        description = f"loss {row['loss']:.3f} · {row['tokens_per_second']:,} tokens/s · {left}"
        self._bar.update(self._task, completed=row["step"], description=description)
        if row["validation_loss"] is not None:
            self.console.print(
                f"step {row['step']:>{len(str(self.steps))}}/{self.steps}  loss {row['loss']:.3f}  "
                f"validation {row['validation_loss']:.3f} {self.task.loss_unit}, {self._metric(row)}  "
                f"{row['tokens_per_second']:,} tokens/s  {left}",
                highlight=False,
                soft_wrap=True,
            )

    def _metric(self, row: dict[str, Any]) -> str:
        metric = self.task.metrics[0]
        return metric.format(row[metric.name])

    def _time_left(self, step: int) -> str:
        if step >= self.steps:
            return "done"
        per_step = (time.perf_counter() - self._started) / max(1, step - self.first_step)
        return f"{format_duration(per_step * (self.steps - step))} left"
