"""Tasks: what a model learns, and from what; one file a task, one a kind of data."""

from smht.tasks.table import TASKS, find_task

__all__ = ["TASKS", "find_task"]
