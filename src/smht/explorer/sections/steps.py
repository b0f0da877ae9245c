"""The steps from token ids to probabilities, one at a time (seed 000, section 4)."""

from collections.abc import Sequence
from typing import Any

from smht.errors import UsageError
from smht.explorer.markup import details, heading_cells, paragraph, table, words
from smht.explorer.reading import Reading
from smht.explorer.section import Choice, Section, kept
from smht.explorer.step_figures import step_figure, step_title
from smht.inspection import Step

_MOST_IN_A_FILE = 60


class Steps(Section):
    """Every step with its formula, shape and values."""

    name = "steps"
    heading = "Step by step"
    lead = "What happens to the text on its way from token ids, step 0, to probabilities, step 6."

    def choices(self, readings: Sequence[Reading], values: Sequence[Any]) -> list[Choice]:
        """Which step: all that any of the models has."""
        longest = max(readings, key=lambda reading: len(reading.trace.steps))
        titles = [step_title(step) for step in longest.trace.steps]
        others = [step_title(step) for reading in readings for step in reading.trace.steps]
        options = tuple((title, title) for title in dict.fromkeys([*titles, *others]))
        return kept([Choice("Step", options, titles[0], walks=True)], values)

    def show(self, reading: Reading, values: Sequence[Any]) -> str:
        """The step, and below it the list of all."""
        step = _find(reading, values[0])
        return step_figure(reading, step) + details("All steps with their shapes", _overview(reading, step))

    def show_all(self, readings: Sequence[Reading], reading: Reading) -> str:
        """One below the other, closed; of deep models the first and last blocks."""
        steps = reading.trace.steps
        if len(steps) > _MOST_IN_A_FILE:
            layers = {step.layer for step in steps if step.layer is not None}
            steps = tuple(step for step in steps if step.layer in (None, 0, max(layers)))
            note = paragraph(f"Of {len(layers)} blocks, the first and the last are shown.")
        else:
            note = ""
        figures = (details(step_title(step), step_figure(reading, step)) for step in steps)
        return note + "".join(figures) + _overview(reading, None)


def _find(reading: Reading, title: str) -> Step:
    for step in reading.trace.steps:
        if step_title(step) == title:
            return step
    raise UsageError(f"this model has no step {title}")


def _overview(reading: Reading, chosen: Step | None) -> str:
    rows = [
        f'<th scope="row"{" aria-current=step" if step is chosen else ""}>{words(step_title(step))}</th>'
        f'<td class="text">{words(step.formula)}</td><td>({", ".join(map(str, step.shape))})</td>'
        for step in reading.trace.steps
    ]
    return table("All steps", [heading_cells(("step", "formula", "shape"), ("formula",))], rows)
