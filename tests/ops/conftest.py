"""Every test of the ops runs once for each backend that takes tensors of the CPU."""

from collections.abc import Iterator

import pytest
import torch

from smht.ops import BACKENDS, backend
from smht.ops.gpu_backend import INTERPRETED

NAMES = sorted(name for name in BACKENDS if name != "gpu" or INTERPRETED)


@pytest.fixture(scope="module", autouse=True, params=NAMES)
def chosen_backend(request: pytest.FixtureRequest) -> Iterator[str]:
    if reason := BACKENDS[request.param].why_unavailable():
        pytest.skip(reason)
    before = backend._chosen
    backend.set_backend(request.param)
    yield request.param
    backend._chosen = before


@pytest.fixture(scope="module", autouse=True)
def fresh_memory_is_nan() -> Iterator[None]:
    """Memory that an op forgot to write shows."""
    torch.use_deterministic_algorithms(True)
    yield
    torch.use_deterministic_algorithms(False)
