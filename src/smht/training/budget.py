"""How long to train: steps, passes over the text, or a time that becomes a number of steps."""

import math
from dataclasses import dataclass

from smht.errors import UsageError

DEFAULT_SECONDS = 180.0
MOST_STEPS = 10**12
_EVALUATION_SHARE = 1 / 3
EVALUATIONS = 10
"""How many evaluations a run has, if nothing else is asked for."""


@dataclass(frozen=True)
class Budget:
    """What was asked for; at most one of the three, and `DEFAULT_SECONDS` if none.

    Attributes:
        steps: optimizer steps.
        epochs: passes over the training text.
        seconds: training time, evaluations included.
    """

    steps: int | None = None
    epochs: float | None = None
    seconds: float | None = None

    def __post_init__(self) -> None:
        given = {name: value for name, value in vars(self).items() if value is not None}
        if len(given) > 1:
            names = " and ".join("--time" if name == "seconds" else f"--{name}" for name in given)
            raise UsageError(f"{names} are both budgets: give one")
        for name, value in given.items():
            if not 0 < value < math.inf:
                raise UsageError(f"{name} = {value} must be above 0 and finite")

    @property
    def is_given(self) -> bool:
        """Whether anything was asked for."""
        return any(value is not None for value in vars(self).values())

    def evaluations(self, evaluation_seconds: float) -> int:
        """How many evaluations a run has, if nothing else is asked for: ten, but fewer where they would eat the time.

        Args:
            evaluation_seconds: expected time of one.
        """
        if self.steps is not None or self.epochs is not None or evaluation_seconds <= 0:
            return EVALUATIONS
        seconds = DEFAULT_SECONDS if self.seconds is None else self.seconds
        return max(1, int(min(EVALUATIONS, _EVALUATION_SHARE * seconds / evaluation_seconds)))

    def to_steps(
        self,
        *,
        windows_per_epoch: int,
        batch_size: int,
        step_seconds: float,
        evaluation_seconds: float,
        evaluate_every: int | None,
    ) -> int:
        """The number of steps that the budget comes to.

        Args:
            windows_per_epoch: windows in one pass over the training text.
            batch_size: windows a step.
            step_seconds: measured time of one step.
            evaluation_seconds: expected time of one evaluation and what is saved with it.
            evaluate_every: steps between evaluations; if not given there are `evaluations` in all.

        Raises:
            UsageError: more steps than anybody will live to see.
        """
        if self.steps is not None:
            steps = self.steps
        elif self.epochs is not None:
            steps = self.epochs * windows_per_epoch / batch_size
        else:
            seconds = DEFAULT_SECONDS if self.seconds is None else self.seconds
            if evaluate_every is None:
                steps = (seconds - self.evaluations(evaluation_seconds) * evaluation_seconds) / step_seconds
            else:
                steps = seconds / (step_seconds + evaluation_seconds / evaluate_every)
        if steps > MOST_STEPS:
            raise UsageError(f"a budget of {steps:,.0f} steps is more than the {MOST_STEPS:,} that a run can have")
        return max(1, math.floor(steps) if self.epochs is None else math.ceil(steps))
