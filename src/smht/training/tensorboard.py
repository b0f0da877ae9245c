"""TensorBoard's record of a run, which must not cost the run its last words when the disk is full."""

import threading
from typing import Any

from transformers.trainer_callback import TrainerCallback

from smht.training.run_folder import RunFolder, writing

_THREAD = "_AsyncWriterThread"
"""The class of the thread in which TensorBoard writes. What stops it is raised by the next call too."""


def tensorboard(run: RunFolder) -> list[TrainerCallback]:
    """TensorBoard's callback if it is installed."""
    try:
        from torch.utils.tensorboard import SummaryWriter
    except ImportError:
        return []
    from transformers.integrations.integration_utils import TensorBoardCallback

    _tell_of_failures_once()
    return [_InOneLine(TensorBoardCallback(SummaryWriter(log_dir=str(run.tensorboard))))]


class _InOneLine(TrainerCallback):
    """A callback whose trouble with the disk is told as all such trouble is.

    Args:
        inner: the callback.
    """

    def __init__(self, inner: TrainerCallback) -> None:
        self._inner = inner

    def on_train_begin(self, *args: Any, **kwargs: Any) -> None:
        """See `TrainerCallback`."""
        with writing("the record for TensorBoard"):
            self._inner.on_train_begin(*args, **kwargs)

    def on_log(self, *args: Any, **kwargs: Any) -> None:
        """See `TrainerCallback`."""
        with writing("the record for TensorBoard"):
            self._inner.on_log(*args, **kwargs)

    def on_train_end(self, *args: Any, **kwargs: Any) -> None:
        """See `TrainerCallback`."""
        with writing("the record for TensorBoard"):
            self._inner.on_train_end(*args, **kwargs)


def _tell_of_failures_once() -> None:
    """Keep Python from printing a traceback where TensorBoard's thread cannot write."""
    before = threading.excepthook
    if getattr(before, "is_ours", False):
        return

    def tell(args: threading.ExceptHookArgs) -> None:
        if not (isinstance(args.exc_value, OSError) and type(args.thread).__name__ == _THREAD):
            before(args)

    tell.is_ours = True  # pyright: ignore[reportFunctionMemberAccess]
    threading.excepthook = tell
