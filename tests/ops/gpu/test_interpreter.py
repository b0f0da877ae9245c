"""The kernels' tests without a GPU: in Triton's interpreter, which a process takes or leaves when it imports Triton."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from helpers.gpu_kernels import HAS_TRITON, INTERPRETED

FILES = sorted(Path(__file__).parent.glob("test_kernels_*.py"))


INTERPRETER = {"TRITON_INTERPRET": "1", "OMP_NUM_THREADS": "1"}


@pytest.mark.slow
@pytest.mark.skipif(not HAS_TRITON, reason="Triton is not installed")
@pytest.mark.skipif(INTERPRETED, reason="this process runs them itself")
def test_in_the_interpreter() -> None:
    # One process for all files: to start takes as long as a file.
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "no:xdist", *map(str, FILES)]
    # pytest-xdist's workers tell their children what they are.
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")}
    run = subprocess.run(command, env={**environment, **INTERPRETER}, capture_output=True, text=True)
    assert run.returncode == 0, run.stdout[-8000:] + run.stderr[-2000:]


@pytest.fixture
def torch_only(tmp_path: Path) -> str:
    """A path on which nothing can be imported that a GPU machine may not have."""
    for name in ("rich", "transformers", "typer", "psutil", "tokenizers", "safetensors", "accelerate", "hypothesis"):
        (tmp_path / f"{name}.py").write_text(f"raise ModuleNotFoundError({name!r})\n")
    return str(tmp_path)


@pytest.mark.slow
@pytest.mark.skipif(not HAS_TRITON, reason="Triton is not installed")
def test_the_benchmark_runs_through_with_torch_and_triton_alone(torch_only: str, tmp_path: Path) -> None:
    root, output = Path(__file__).parents[3], tmp_path / "figures.json"
    path = os.pathsep.join(filter(None, (torch_only, os.environ.get("PYTHONPATH"))))
    environment = {**os.environ, **INTERPRETER, "PYTHON": sys.executable, "PYTHONPATH": path}
    command = [str(root / "benchmarks/gpu.sh"), "--smoke", "--output", str(output)]
    run = subprocess.run(command, env=environment, capture_output=True, text=True)
    assert run.returncode == 0, run.stdout[-3000:] + run.stderr[-3000:]
    assert "checks that fail: 0" in run.stdout and "left out for want of time: 0" in run.stdout
    figures = json.loads(output.read_text())
    assert {frozenset(figure) for figure in figures} == {frozenset({"name", "value", "unit", "goal", "holds"})}
    assert len([figure for figure in figures if figure["name"].startswith("error") and figure["holds"]]) > 10


def test_the_ops_need_torch_only() -> None:
    # PyTorch's compiler imports Triton where it is installed; ours do not.
    code = """
import sys
sys.modules["triton"] = None
import smht.ops
print(*sorted({"smht.ops.gpu", "transformers"} & set(sys.modules)))
smht.ops.explain()
print(*sorted({"smht.ops.gpu", "transformers"} & set(sys.modules)))
"""
    run = subprocess.run([sys.executable, "-W", "error", "-c", code], capture_output=True, text=True, check=True)
    assert run.stdout.split() == []
