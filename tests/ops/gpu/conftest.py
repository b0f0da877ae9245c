"""Kernels run on the GPU, or in a process of their own in Triton's interpreter (`test_interpreter.py`)."""

from collections.abc import Iterator

import pytest

from helpers.gpu_kernels import CAN_RUN
from smht.ops import backend

if not CAN_RUN:
    collect_ignore_glob = ["test_kernels_*.py"]


@pytest.fixture(scope="module", autouse=True)
def chosen_backend() -> Iterator[None]:
    """These tests call the kernels themselves: the choice among backends makes no difference."""
    before = backend._chosen
    yield
    backend._chosen = before


@pytest.fixture(scope="module", autouse=True)
def loaded_kernels() -> None:
    """Their operators are known to torch."""
    if CAN_RUN:
        assert backend.BACKENDS["gpu"].why_unavailable() is None
