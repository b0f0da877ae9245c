"""kill -9 at random moments, the same command each time: the results are those of an undisturbed comparison."""

from pathlib import Path

import pytest

from helpers import forks

KILLS = 3
"""More of them, and other moments: `python tests/comparison/kill_driver.py FOLDER 20 SEED`."""


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_killed_at_random_moments(tmp_path: Path) -> None:
    driver = Path(__file__).with_name("kill_driver.py")
    code, told, errors = forks.run(driver, tmp_path, KILLS, 0, timeout=600)
    assert code == 0, errors[-3000:]
    kills, finished = map(int, told.split())
    assert kills >= KILLS and finished >= 1
