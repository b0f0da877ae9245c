from collections.abc import Iterator

import pytest

from helpers.processes import World


@pytest.fixture(scope="session")
def world() -> Iterator[World]:
    processes = World(4)
    yield processes
    processes.stop()
