"""Fixtures of the tests of the Hugging Face side."""

import logging
from collections.abc import Iterator

import pytest
from transformers.utils import logging as transformers_logging


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
