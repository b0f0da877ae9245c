"""Fixtures of the tests of the Hugging Face side."""

import logging
from collections.abc import Iterator
from typing import Any

import pytest
from torch import Tensor
from transformers.utils import logging as transformers_logging

from smht.ops import BACKENDS, backend


class _Recorder(logging.Handler):
    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.messages: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.messages.append(record.getMessage())


@pytest.fixture
def transformers_messages() -> Iterator[list[str]]:
    """What transformers logs as a warning or worse while the test runs."""
    recorder = _Recorder()
    logger = logging.getLogger("transformers")
    logger.addHandler(recorder)
    before = transformers_logging.get_verbosity()
    transformers_logging.set_verbosity_warning()  # the command line's tests turn it down in the same process
    yield recorder.messages
    transformers_logging.set_verbosity(before)
    logger.removeHandler(recorder)


@pytest.fixture
def silent_transformers(transformers_messages: list[str]) -> Iterator[None]:
    """Fails the test if transformers logs a warning: normal use gives no reason for one."""
    yield
    assert not transformers_messages


@pytest.fixture
def cpu_kernels(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The backend that is chosen by itself, where the kernels are there."""
    if reason := BACKENDS["cpu"].why_unavailable():
        pytest.skip(reason)
    monkeypatch.setattr(backend, "_chosen", None)
    backend.set_backend("auto")
    yield


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many sequences each call of the kernel had."""
    made: list[int] = []
    functions = BACKENDS["cpu"].functions
    kernel = functions["split_decode"]

    def recording(x: Tensor, *arguments: Any) -> Tensor:
        made.append(len(x))
        return kernel(x, *arguments)

    monkeypatch.setitem(functions, "split_decode", recording)
    return made
