import os
from collections.abc import Iterator

import pytest

from helpers.processes import Worlds

# As `make test` has it: else accelerate warns in every rank that it chooses for itself.
os.environ.setdefault("OMP_NUM_THREADS", "1")


@pytest.fixture(scope="session")
def world() -> Iterator[Worlds]:
    worlds = Worlds()
    yield worlds
    worlds.stop()
