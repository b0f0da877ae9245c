"""The kernels' tests without a GPU: in Triton's interpreter, which a process takes or leaves when it imports Triton."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from helpers.gpu_kernels import HAS_TRITON, INTERPRETED

FILES = sorted(Path(__file__).parent.glob("test_kernels_*.py"))


@pytest.mark.slow
@pytest.mark.skipif(not HAS_TRITON, reason="Triton is not installed")
@pytest.mark.skipif(INTERPRETED, reason="this process runs them itself")
@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
def test_in_the_interpreter(file: Path) -> None:
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "no:xdist", str(file)]
    environment = {**os.environ, "TRITON_INTERPRET": "1", "OMP_NUM_THREADS": "1"}
    # pytest-xdist's workers tell their children what they are.
    environment = {name: value for name, value in environment.items() if not name.startswith("PYTEST_")}
    run = subprocess.run(command, env=environment, capture_output=True, text=True)
    assert run.returncode == 0, run.stdout[-8000:] + run.stderr[-2000:]


@pytest.mark.slow
@pytest.mark.skipif(not HAS_TRITON, reason="Triton is not installed")
def test_the_benchmark_runs_through(tmp_path: Path) -> None:
    root, output = Path(__file__).parents[3], tmp_path / "figures.json"
    environment = {**os.environ, "TRITON_INTERPRET": "1", "OMP_NUM_THREADS": "1", "PYTHON": sys.executable}
    command = [str(root / "benchmarks/gpu.sh"), "--smoke", "--output", str(output)]
    run = subprocess.run(command, env=environment, capture_output=True, text=True)
    assert run.returncode == 0, run.stderr[-3000:]
    figures = json.loads(output.read_text())
    assert {frozenset(figure) for figure in figures} == {frozenset({"name", "value", "unit", "goal", "holds"})}
    assert not [figure["name"] for figure in figures if figure["name"].startswith("ran:")]
    errors = [figure["value"] for figure in figures if figure["name"].startswith("error")]
    # Shapes are so small that one unlucky rounding decides.
    assert len(errors) > 10 and max(errors) < 4


def test_the_ops_need_torch_only() -> None:
    code = "import sys, smht.ops; print(*sorted({'triton', 'transformers'} & set(sys.modules)))"
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert run.stdout.strip() == ""
