"""kill -9 at random moments, resume each time: the final weights are bitwise those of an undisturbed run."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

KILLS = 8
"""More of them, and other moments: `python tests/training/kill_driver.py FOLDER 20 SEED`."""


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_killed_at_random_moments(tmp_path: Path):
    driver = Path(__file__).with_name("kill_driver.py")
    result = subprocess.run(
        [sys.executable, driver, tmp_path, str(KILLS), "0"],
        capture_output=True,
        text=True,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )
    assert result.returncode == 0, result.stderr[-3000:]
    kills, finished = map(int, result.stdout.split())
    assert kills == KILLS and finished >= 1
