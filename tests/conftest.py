"""Settings of all tests."""

import gc

import pytest
from hypothesis import settings

pytest.register_assert_rewrite("helpers")

# Shared machines stall now and then, and a test that is slow once is not wrong.
settings.register_profile("smht", deadline=None, max_examples=20)
settings.load_profile("smht")


def pytest_collection_finish() -> None:
    """What has been imported stays: every training asks for all garbage, which took most of a second to look for."""
    gc.freeze()


def pytest_unconfigure() -> None:
    gc.unfreeze()
