"""TensorBoard's record where the disk is full: one line, not TensorBoard's traceback."""

from pathlib import Path

import pytest

from helpers import forks

LIMITED = """
import resource, sys, time
from transformers import TrainerControl, TrainerState, TrainingArguments
from smht.errors import SmhtError
from smht.training.run_folder import RunFolder
from smht.training.tensorboard import tensorboard

(callback,) = tensorboard(RunFolder(sys.argv[1]))
arguments, state = TrainingArguments(output_dir=sys.argv[1], report_to="none", use_cpu=True), TrainerState()
resource.setrlimit(resource.RLIMIT_FSIZE, (4_000, 4_000))
try:
    for state.global_step in range(1_000):
        callback.on_log(arguments, state, TrainerControl(), logs={"loss": 1.0})
except SmhtError as error:
    print(error)
"""


@pytest.mark.slow
def test_a_full_disk_is_told_in_one_line(tmp_path: Path) -> None:
    code, told, errors = forks.run("-c", LIMITED, tmp_path, timeout=120)
    assert (code, errors) == (0, "")
    assert told.startswith("the record for TensorBoard could not be written: ")
    assert len(told.splitlines()) == 1
