"""Every task by name. A new one is a file beside this one and a line here."""

from smht.errors import UsageError, did_you_mean
from smht.tasks.classification import Classification
from smht.tasks.language_modelling import LanguageModelling
from smht.tasks.task import Task
from smht.tasks.translation import Translation

TASKS: dict[str, Task] = {task.name: task for task in (LanguageModelling(), Translation(), Classification())}
DEFAULT_TASK = LanguageModelling.name


def find_task(name: str) -> Task:
    """The task called `name`.

    Raises:
        UsageError: there is none.
    """
    if name not in TASKS:
        raise UsageError(f"no task is called {name!r}: {did_you_mean(name, TASKS)}")
    return TASKS[name]
