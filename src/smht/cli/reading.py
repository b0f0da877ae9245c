"""A run as the commands that look inside take it."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from smht.cli.output import progress_console

if TYPE_CHECKING:
    from torch import Tensor


def load(run: Path) -> tuple[Any, Any]:
    """The run's model and tokenizer.

    Raises:
        UsageError: there is no such run, or it is damaged.
    """
    from smht.training.run_folder import RunFolder

    folder = RunFolder(run)
    return folder.load_model(), folder.load_tokenizer()


def note_if_file(text: str, instead: str = "") -> None:
    """Tell a user whose text is the name of a file that it is the name that is read.

    Args:
        text: as given.
        instead: what to say for the file's contents.
    """
    try:
        is_file = Path(text).is_file()
    except (OSError, ValueError):
        return
    if is_file:
        line = f"note: the model reads the name {text}, not what is in that file{instead}"
        progress_console().print(line, markup=False, highlight=False, soft_wrap=True)


def text_windows(model: Any, tokenizer: Any, texts: Sequence[str], most: int, shared: int = 0) -> "list[Tensor]":
    """Texts in windows `[1, T]` of the model's context, at least two tokens each, one after the other.

    Args:
        model: whose context.
        tokenizer: the model's.
        texts: files, folders, globs or `-`.
        most: how many windows at most.
        shared: tokens at a window's start that the one before it ends with.

    Raises:
        UsageError: texts that are missing or cannot be read.
    """
    import torch

    from smht.tasks.text_files import read_texts
    from smht.tasks.token_stream import tokenize

    ids = torch.from_numpy(tokenize(tokenizer, read_texts(texts)).ids.astype("int64"))
    context = model.config.max_position_embeddings
    starts = range(0, len(ids) - 1, max(1, context - shared))
    return [ids[None, start : start + context] for start in starts[:most] if len(ids[start : start + context]) > 1]
