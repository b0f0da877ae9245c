"""Settings of all tests."""

import pytest
from hypothesis import settings

pytest.register_assert_rewrite("helpers")

# Shared machines stall now and then, and a test that is slow once is not wrong.
settings.register_profile("smht", deadline=None, max_examples=20)
settings.load_profile("smht")
