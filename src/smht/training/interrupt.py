"""Ctrl-C and SIGTERM as a request to stop at the next step; a second one stops at once."""

import signal
from types import FrameType
from typing import Any, Self


class StopRequest:
    """While entered, remembers that the user or the system asked to stop.

    Signals can be handled in a process's main thread only; elsewhere nothing is changed.
    """

    def __init__(self) -> None:
        self.received: str | None = None
        self._previous: dict[int, Any] = {}

    def __enter__(self) -> Self:
        for number in (signal.SIGINT, signal.SIGTERM):
            try:
                self._previous[number] = signal.signal(number, self._handle)
            except ValueError:  # not the main thread
                break
        return self

    def __exit__(self, *exception: object) -> None:
        for number, handler in self._previous.items():
            if handler is not None:  # None: one that was not set from Python, which Python cannot set again
                signal.signal(number, handler)
        self._previous.clear()

    def _handle(self, number: int, frame: FrameType | None) -> None:
        if self.received is not None:
            raise KeyboardInterrupt
        self.received = signal.Signals(number).name
