"""A run as the commands that look inside take it."""

from pathlib import Path
from typing import Any


def load(run: Path) -> tuple[Any, Any]:
    """The run's model and tokenizer.

    Raises:
        UsageError: there is no such run, or it is damaged.
    """
    from smht.training.run_folder import RunFolder

    folder = RunFolder(run)
    return folder.load_model(), folder.load_tokenizer()
