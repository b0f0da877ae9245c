"""A ladder of sizes: a comparison at each of them, in rising order, so that laws of loss over size can be fitted.

```
scaling.json                        what was asked
results.jsonl                       one object a finished trial, of all sizes
sizes/parameters-100000/            the comparison at one size (`smht.comparison.folder`)
report.md report.html               once all sizes are over
```
"""

import hashlib
import itertools
import json
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Literal

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table
from rich.text import Text

from smht.comparison.budget import Budget, Limit
from smht.comparison.comparison import Outcome, carry_out, check
from smht.comparison.fits import cost_of
from smht.comparison.folder import ComparisonFolder
from smht.comparison.measurement import Measured
from smht.comparison.record import new_record
from smht.comparison.request import CompareRequest
from smht.comparison.scaling_law import LEAST_SIZES
from smht.comparison.search import grid
from smht.comparison.setting import Setting, prepare_all
from smht.errors import UsageError, first_line
from smht.training.quantities import format_duration
from smht.version import __version__

RECORD = "scaling.json"
SearchAt = Literal["every", "smallest"]
"""At which sizes rates are tried; from the smallest, the best factors of the default rates are carried over."""

_WIDTH_OF_FILES = 100


@dataclass(frozen=True)
class ScalingRequest:
    """A ladder of comparisons.

    Attributes:
        comparison: what to do at each size; its budget gives no size, and a length or none.
        sizes: in rising order.
        search_at: where rates are tried.
    """

    comparison: CompareRequest
    sizes: tuple[Limit, ...]
    search_at: SearchAt = "every"

    def __post_init__(self) -> None:
        if len(self.sizes) < LEAST_SIZES:
            raise UsageError(f"a power law needs at least {LEAST_SIZES} sizes, not {len(self.sizes)}")

    def at(self, size: Limit) -> CompareRequest:
        """The comparison at one size."""
        return replace(self.comparison, budget=Budget(size, self.comparison.budget.length))


@dataclass(frozen=True)
class Climbed:
    """How a ladder ended.

    Attributes:
        folder: where everything is.
        status: `finished` or `interrupted`.
        outcomes: of the comparisons that were begun, in the order of sizes.
    """

    folder: Path
    status: str
    outcomes: tuple[Outcome, ...]


class ScalingFolder(ComparisonFolder):
    """The files of a ladder.

    Args:
        path: the folder.
    """

    holds = "a ladder of sizes"

    def __init__(self, path: str | Path) -> None:
        super().__init__(path)
        self.record_path = self.path / RECORD

    def refuse_fewer(self, sizes: Sequence[Limit]) -> None:
        """Keep a ladder that lacks a size of the one in the folder from taking its place.

        That all sizes are there is also what lets `check` see another text or recipe: it compares size by size.

        Raises:
            UsageError: one lacks, or `scaling.json` is damaged.
        """
        try:
            asked = json.loads(self.record_path.read_text(encoding="utf-8"))["asked"]
            known = [Limit(str(size["kind"]), float(size["amount"])) for size in asked["sizes"]]
        except FileNotFoundError:
            return
        except (ValueError, OSError, KeyError, TypeError, RecursionError) as error:
            raise self.damaged(first_line(error)) from None
        for size in known:
            if size not in sizes:
                raise UsageError(f"{self.path} has the size {size} too: name all of its sizes, or another --output")

    def at(self, size: Limit) -> ComparisonFolder:
        """Where the comparison at a size is."""
        return ComparisonFolder(self.path / folder_name(size))


def folder_name(size: Limit) -> str:
    """Of the comparison at a size, below the ladder's."""
    return f"sizes/{size.kind}-{size.amount:.0f}"


def climb(request: ScalingRequest, output: Path | None, console: Console, command: Sequence[str] = ()) -> Climbed:
    """Make the comparisons of a ladder, or go on with them; finished trials are not made again.

    Args:
        request: what to compare at which sizes.
        output: the folder; if not given, one below `comparisons` that is the same for all sizes of the same request.
        console: where progress goes.
        command: what was typed, word by word, to be kept beside the results.

    Raises:
        UsageError: something was asked for wrongly; nothing has been written then.
        SmhtError: the disk is full; what was learned up to the last save is there.
    """
    if output is not None:
        ScalingFolder(output).refuse_if_taken()  # before the data, which take a while
    settings = _prepare(request)
    folder = ScalingFolder(output or _default_folder(request, settings[0]))
    folder.refuse_if_taken()
    folder.refuse_fewer(request.sizes)
    for setting in settings:
        check(setting, folder.at(setting.size), command)
    measured = [setting.measure() for setting in settings]
    record = _new_record(request, settings, command)
    with folder.locked():
        _announce(request, settings, measured, folder, console)
        folder.write_record(record)
        outcomes = _carry_out(request, settings, measured, folder, console, command)
        status = outcomes[-1].status
        folder.write_results(result for outcome in outcomes for result in outcome.results)
        folder.write_record({**record, "status": status})
    return Climbed(folder.path, status, tuple(outcomes))


def _carry_out(
    request: ScalingRequest,
    settings: Sequence[Setting],
    measured: Sequence[dict[str, Measured]],
    folder: ScalingFolder,
    console: Console,
    command: Sequence[str],
) -> list[Outcome]:
    """Size by size, up to the one that was interrupted if one was."""
    outcomes: list[Outcome] = []
    for place, (setting, costs) in enumerate(zip(settings, measured, strict=True)):
        if place and request.search_at == "smallest":
            chosen = outcomes[0].record["search"]["chosen"]
            setting = replace(setting, request=replace(setting.request, factors=chosen))
        _say(console, f"\nsize {place + 1} of {len(settings)}: {setting.size}", style="bold")
        outcomes.append(carry_out(setting, folder.at(setting.size), costs, console, command))
        if outcomes[-1].status != "finished":
            break
    return outcomes


def _prepare(request: ScalingRequest) -> list[Setting]:
    """A setting a size.

    Raises:
        UsageError: something cannot be compared as asked, or two sizes make the same model of a variant.
    """
    requests = [request.at(size) for size in request.sizes]
    if request.search_at == "smallest":
        requests[1:] = [replace(each, rates=1) for each in requests[1:]]
    settings = prepare_all(requests)
    for smaller, larger in itertools.pairwise(settings):
        for one, other in zip(smaller.solved, larger.solved, strict=True):
            if cost_of(one.config, "parameters") >= cost_of(other.config, "parameters"):
                raise UsageError(
                    f"sizes {smaller.size} and {larger.size} make {one.variant.name} of width "
                    f"{one.config.hidden_size} and {other.config.hidden_size}, the second no larger: "
                    "give sizes farther apart"
                )
    return settings


def _new_record(request: ScalingRequest, settings: Sequence[Setting], command: Sequence[str]) -> dict[str, Any]:
    """What `scaling.json` says; the comparisons have records of their own."""
    return {
        "smht": __version__,
        "command": list(command) or None,
        "status": "running",
        "started": time.strftime("%Y-%m-%dT%H:%M:%S%z"),
        "asked": {
            "sizes": [{**asdict(size), "folder": folder_name(size)} for size in request.sizes],
            "length": None if (length := request.comparison.budget.length) is None else asdict(length),
            "tokens_per_parameter": request.comparison.tokens_per_parameter,
            "search_at": request.search_at,
            "variants": [variant.name for variant in request.comparison.variants],
            "seeds": list(request.comparison.all_seeds),
        },
    }


def _default_folder(request: ScalingRequest, setting: Setting) -> Path:
    """The same for the same request with other sizes, seeds or variants, so that a ladder can grow."""
    asked = {name: value for name, value in new_record(setting)["asked"].items() if name not in ("size", "length")}
    length, ratio = request.comparison.budget.length, request.comparison.tokens_per_parameter
    whole = [asked, request.search_at, ratio if length is None else asdict(length)]
    digest = hashlib.sha256(json.dumps(whole, sort_keys=True).encode()).hexdigest()[:6]
    return Path("comparisons") / f"scaling-{setting.size.kind}-{digest}"


def _announce(
    request: ScalingRequest,
    settings: Sequence[Setting],
    measured: Sequence[dict[str, Measured]],
    folder: ScalingFolder,
    console: Console,
) -> None:
    """Print the sizes of all variants, how long all takes, and what to beware of."""
    wide = console if console.is_terminal else Console(file=console.file, width=_WIDTH_OF_FILES, quiet=console.quiet)
    table = Table(
        "variant", "parameters", "width", "feed-forward", "tokens", "passes", box=SIMPLE_HEAD, show_edge=False
    )
    table.columns[0].overflow = "fold"
    for column in table.columns[1:]:
        column.justify, column.no_wrap = "right", True
    for setting in settings:
        for solved in setting.solved:
            config, tokens, passes = solved.config, "by time", ""
            if setting.length.kind != "time":
                items = setting.steps(solved) * setting.batch_size
                tokens, passes = f"{items * setting.context:,}", f"{items / setting.examples.items_per_epoch:.2f}"
            table.add_row(
                Text(solved.variant.name),
                f"{cost_of(config, 'parameters'):,}",
                f"{config.hidden_size:,}",
                f"{config.intermediate_size:,}",
                tokens,
                passes,
            )
    wide.print(table)
    seconds = sum(map(_expected_seconds, settings, measured))
    _say(
        console,
        f"expect  about {format_duration(max(1.0, seconds))} for {len(settings)} sizes, what is finished included",
    )
    if request.comparison.seeds == 1:
        _say(console, "note    one seed: no interval is claimed for the laws; --seeds 3 gives them")
    _say(console, f"folder  {folder.path}")


def _expected_seconds(setting: Setting, measured: dict[str, Measured]) -> float:
    """How long one size takes from its beginning."""
    rates, windows = setting.request.rates, setting.evaluation_windows(measured)
    trials = [trial for factor in grid(rates) for trial in setting.search_trials(factor)] if rates > 1 else []
    for seed in setting.request.all_seeds:
        trials += setting.final_trials(seed, dict.fromkeys(measured, 0.0))
    return sum(setting.expected_seconds(trial, measured[trial.variant], windows) for trial in trials)


def _say(console: Console, line: str, style: str | None = None) -> None:
    console.print(line, style=style, markup=False, highlight=False, soft_wrap=True)
