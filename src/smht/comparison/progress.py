"""What a person sees of a comparison on standard error: what it will do and take, then how it goes."""

import time
from collections.abc import Iterable
from types import TracebackType
from typing import Any, Self

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn
from rich.table import Table
from rich.text import Text

from smht.comparison.measurement import Measured
from smht.comparison.results import TrialResult
from smht.comparison.search import describe_share
from smht.comparison.setting import Setting
from smht.comparison.trial import TrialRun
from smht.training.parametrisation import STANDARD
from smht.training.quantities import format_duration, format_size

_WIDTH_OF_FILES = 120
_WIDE = 100
_COLUMNS = {
    "width": ("hidden_size", ","),
    "feed-forward": ("intermediate_size", ","),
    "blocks": ("num_hidden_layers", ","),
    "parameters": ("parameters", ","),
    "multiply-adds": ("multiply_adds_per_token", ","),
    "off": ("off", "+.2%"),
    "tokens/s": ("speed", ",.0f"),
}
"""Of the table of variants: fields of `comparison.json` and how they are written."""
_DISPENSABLE = ("blocks", "multiply-adds")


def announce(
    setting: Setting,
    record: dict[str, Any],
    measured: dict[str, Measured],
    disk_bytes: int,
    folder: str,
    work: "Work",
    console: Console,
) -> None:
    """Print the variants with their sizes, the budgets, and the time, memory and disk to expect."""
    wide = console if console.is_terminal else Console(file=console.file, width=_WIDTH_OF_FILES, quiet=console.quiet)
    wide.print(_variants(setting, record, measured, wide.width))
    seeds, asked = len(record["seeds"]), record["asked"]
    rates, machine = asked["rates"], asked["machine"]
    search = "no search for rates; "
    if rates > 1:
        search = f"{rates} rates each on {describe_share(asked['search_share'])}, then "
    finished = f"; {work.finished} of them are finished" if work.finished else ""
    parametrisation = setting.request.training.parametrisation
    spread = "" if parametrisation == STANDARD else f"; {parametrisation} parametrisation"
    memory = sum(each.peak_memory_bytes for each in measured.values())
    lines = {
        "text": setting.data.describe(setting.examples.token_counts[0]),
        "budget": f"{setting.size}; {setting.length}, in steps of "
        f"{setting.examples.describe_batch(setting.batch_size)}{_repeats(setting)}",
        "trials": f"{work.trials}: {search}{seeds} {'seed' if seeds == 1 else 'seeds'}{spread}{finished}",
        "expect": f"about {format_duration(max(1.0, work.seconds_left))}, {format_size(memory)} of memory for tensors, "
        f"{format_size(disk_bytes)} of disk; on {machine['device']} with {machine['threads']} "
        f"{'thread' if machine['threads'] == 1 else 'threads'}, split projections by {machine['backend']}",
        "folder": folder,
    }
    for name, line in lines.items():
        console.print(Text.assemble((f"{name:<7}", "bold"), " ", line), soft_wrap=True)


def _variants(setting: Setting, record: dict[str, Any], measured: dict[str, Measured], width: int) -> Table:
    """A row a variant; on a narrow terminal without what can be looked up in `comparison.json`."""
    columns = (
        _COLUMNS if width >= _WIDE else {name: field for name, field in _COLUMNS.items() if name not in _DISPENSABLE}
    )
    table = Table("variant", *columns, box=SIMPLE_HEAD, show_edge=False, pad_edge=False, padding=(0, 1, 0, 0))
    table.columns[0].overflow = "fold"
    for column in table.columns[1:]:
        column.justify, column.no_wrap = "right", True
    for row in record["variants"]:
        speed = setting.batch_size * setting.context / measured[row["name"]].step_seconds
        shown = {**row, "speed": speed}
        table.add_row(Text(row["name"]), *(format(shown[field], template) for field, template in columns.values()))
    return table


def _repeats(setting: Setting) -> str:
    if setting.length.kind == "time":
        return ""
    passes = [setting.steps(each) * setting.batch_size / setting.examples.items_per_epoch for each in setting.solved]
    low, high = min(passes), max(passes)
    return f": {low:,.2f} passes over the text" if low == high else f": {low:,.2f} to {high:,.2f} passes over the text"


class Work:
    """What is left to do, counted in the seconds that it was expected to take.

    Args:
        trials: how many there are, finished ones included.
        finished: how many of them are finished.
        seconds: what all others will take.
    """

    def __init__(self, trials: int, finished: int, seconds: float) -> None:
        self.trials, self.finished = trials, finished
        self.seconds_left = self._expected = seconds
        self._started = time.perf_counter()

    def start(self) -> None:
        """Start the clock."""
        self._started = time.perf_counter()

    def add(self, trials: int, seconds: float) -> None:
        """More than was thought."""
        self.trials += trials
        self._expected += seconds
        self.seconds_left += seconds

    def do(self, seconds: float) -> None:
        """So much of it is done."""
        self.seconds_left = max(0.0, self.seconds_left - seconds)

    def finish(self) -> None:
        """One more trial is finished."""
        self.finished += 1

    @property
    def part(self) -> float:
        """Of all that this process had to do, what is done."""
        return 1 - self.seconds_left / self._expected if self._expected else 1.0

    @property
    def time_left(self) -> str:
        """For a person; goes by how long things took so far."""
        done = self._expected - self.seconds_left
        pace = (time.perf_counter() - self._started) / done if done > 0 else 1.0
        return "done" if self.finished >= self.trials else f"{format_duration(pace * self.seconds_left)} left"


class ComparisonDisplay:
    """Shows points of curves and results of trials as they come.

    Args:
        console: where to, standard error as a rule.
        work: what is left to do.
        names: of the variants.
    """

    def __init__(self, console: Console, work: Work, names: Iterable[str]) -> None:
        self.console, self.work = console, work
        self._width = max(map(len, names))
        self._bar = Progress(
            TextColumn("trial {task.description}"),
            BarColumn(bar_width=20),
            TaskProgressColumn(),
            TextColumn("{task.fields[left]}"),
            console=console,
            transient=True,
            disable=not console.is_terminal,
        )
        self._task = self._bar.add_task("", total=1.0, left="")

    def __enter__(self) -> Self:
        self.work.start()
        self._bar.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._bar.stop()

    def say(self, *lines: str) -> None:
        """Print lines."""
        for line in lines:
            self.console.print(line, markup=False, highlight=False, soft_wrap=True)

    def move(self) -> None:
        """Move the bar to where the work is."""
        description = f"{min(self.work.finished + 1, self.work.trials)}/{self.work.trials}"
        self._bar.update(self._task, completed=self.work.part, description=description, left=self.work.time_left)

    def show_point(self, run: TrialRun, point: dict[str, Any]) -> None:
        """Print a point of a curve on the way."""
        speed = point["tokens"] / max(point["seconds"], 1e-9)
        self.say(f"{self._name(run.trial)}  {run.done:>4.0%}  {_scores(point)}  {speed:,.0f} tokens/s  {self._left()}")

    def show_result(self, result: TrialResult) -> None:
        """Print how a trial ended."""
        if result.status != "done":
            self.say(f"{self._name(result)}  {result.status}: {result.error}")
            return
        scores = _scores({"validation_loss": result.validation_loss, "bits_per_byte": result.bits_per_byte})
        self.say(f"{self._name(result)}  done  {scores}  {result.tokens_per_second:,.0f} tokens/s  {self._left()}")

    def _name(self, trial: Any) -> str:
        return f"{trial.purpose:<6}  {trial.variant:<{self._width}}  seed {trial.seed}  rate {trial.learning_rate:<8g}"

    def _left(self) -> str:
        return f"trials {self.work.finished}/{self.work.trials}, {self.work.time_left}"


def _scores(scores: dict[str, Any]) -> str:
    return f"validation {scores['validation_loss']:.4f} nats/token, {scores['bits_per_byte']:.4f} bits/byte"
