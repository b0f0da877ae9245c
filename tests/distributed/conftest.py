from collections.abc import Iterator

import pytest

from helpers.processes import Worlds


@pytest.fixture(scope="session")
def world() -> Iterator[Worlds]:
    worlds = Worlds()
    yield worlds
    worlds.stop()
