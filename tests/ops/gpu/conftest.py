"""Kernels run on the GPU, or in a process of their own in Triton's interpreter (`test_interpreter.py`)."""

from collections.abc import Iterator

import pytest

from helpers.gpu_kernels import CAN_RUN

if not CAN_RUN:
    collect_ignore_glob = ["test_kernels_*.py"]


@pytest.fixture(scope="module", autouse=True)
def chosen_backend() -> Iterator[None]:
    """These tests call the kernels themselves: the backends in the table make no difference."""
    yield
