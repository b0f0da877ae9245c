"""A text, and comparisons that take a second."""

from pathlib import Path

import pytest

from helpers.comparisons import MEASURED, write_text
from smht.comparison import setting


@pytest.fixture
def text(tmp_path: Path) -> Path:
    return write_text(tmp_path)


@pytest.fixture
def fixed_costs(monkeypatch: pytest.MonkeyPatch) -> None:
    """Spares a comparison the seconds that measuring its costs takes."""
    monkeypatch.setattr(setting, "measure", lambda *arguments: MEASURED)
