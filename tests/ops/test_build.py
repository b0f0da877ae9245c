"""Building the kernels' library, on a tiny source in its place: together, killed midway, without a compiler."""

import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import torch

from helpers.errors import refused
from smht import ops
from smht.errors import SmhtError
from smht.ops import backend, build, cpu_backend

pytestmark = pytest.mark.skipif(shutil.which("c++") is None, reason="needs a C++ compiler")

PROGRAM = """
import sys
from pathlib import Path
from smht.ops import build
build.SOURCES = Path(sys.argv[1])
print(build.load_library())
"""


@pytest.fixture(scope="module", autouse=True)
def chosen_backend() -> None:
    """These tests choose themselves."""


@pytest.fixture
def sources(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "sources"
    folder.mkdir()
    (folder / "answer.cpp").write_text('extern "C" int answer() { return 42; }\n')
    monkeypatch.setattr(build, "SOURCES", folder)
    monkeypatch.setenv("TORCH_EXTENSIONS_DIR", str(tmp_path / "extensions"))
    return folder


def compiler(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, script: str) -> Path:
    """A compiler that runs `script` before each compilation. Returns the file in which it counts them."""
    count = tmp_path / "compilations"
    program = tmp_path / "compiler"
    program.write_text(f'#!/bin/sh\ncase "$*" in *" -c "*) echo one >> {count}; {script};; esac\nexec c++ "$@"\n')
    program.chmod(0o755)
    monkeypatch.setenv("CXX", str(program))
    return count


def start(sources: Path) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", PROGRAM, str(sources)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )


def libraries(tmp_path: Path) -> list[Path]:
    return sorted((tmp_path / "extensions" / "smht").glob("*.so"))


def test_the_name_changes_with_sources_instruction_set_and_torch(
    sources: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.backends.cpu, "get_cpu_capability", lambda: "DEFAULT")
    names = [build.library_path().name]
    (sources / "answer.cpp").write_text('extern "C" int answer() { return 43; }\n')
    names.append(build.library_path().name)
    monkeypatch.setattr(torch.backends.cpu, "get_cpu_capability", lambda: "AVX2")
    names.append(build.library_path().name)
    monkeypatch.setattr(torch, "__version__", "2.99.0")
    names.append(build.library_path().name)
    assert len(set(names)) == 4
    assert "avx2" in names[2] and "2.99.0" in names[3]


def test_builds_once_and_then_loads(tmp_path: Path, sources: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    count = compiler(tmp_path, monkeypatch, "true")
    path = build.load_library()
    assert path == build.load_library() and libraries(tmp_path) == [path]
    assert count.read_text().splitlines() == ["one"]
    assert [left.suffix for left in path.parent.iterdir() if left != path] == [".lock"]


def test_two_processes_at_once_build_once(tmp_path: Path, sources: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    count = compiler(tmp_path, monkeypatch, "sleep 1")
    processes = [start(sources) for _ in range(2)]
    outputs = [process.communicate(timeout=120) for process in processes]
    assert [process.returncode for process in processes] == [0, 0], outputs
    assert count.read_text().splitlines() == ["one"]
    assert [Path(out.strip()) for out, _ in outputs] == libraries(tmp_path) * 2


def test_after_a_killed_builder_the_next_one_builds(
    tmp_path: Path, sources: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    count = compiler(tmp_path, monkeypatch, "sleep 60")
    killed = start(sources)
    while not count.exists():
        assert killed.poll() is None, killed.communicate()
        time.sleep(0.05)
    os.killpg(killed.pid, signal.SIGKILL)
    killed.communicate()
    folder = tmp_path / "extensions" / "smht"
    assert libraries(tmp_path) == [] and list(folder.glob("*.building-*"))
    compiler(tmp_path, monkeypatch, "true")
    assert build.load_library() == libraries(tmp_path)[0]
    assert not list(folder.glob("*.building-*"))


def test_what_the_compiler_says_is_passed_on(tmp_path: Path, sources: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (sources / "answer.cpp").write_text("no program\n")
    with refused("compiling the CPU kernels failed: ", "answer.cpp:1:1: error: ", kind=SmhtError):
        build.load_library()
    assert libraries(tmp_path) == []


def test_a_compiler_that_fails_is_a_reason(sources: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CXX", "/bin/false")
    with refused("compiling the CPU kernels failed: ", "/bin/false", kind=SmhtError):
        build.load_library()


def test_a_compiler_with_arguments_is_named(sources: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CXX", "c++ -O1")
    with refused("'c++ -O1' was not found", "without arguments", kind=SmhtError):
        build.load_library()


def test_a_folder_that_cannot_be_written_is_named(sources: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TORCH_EXTENSIONS_DIR", "/dev/null/extensions")
    with refused("cannot be written or loaded", "/dev/null/extensions", kind=SmhtError):
        build.load_library()


def test_a_reason_is_what_the_build_says(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail() -> None:
        raise SmhtError("it cannot be built: 42") from OSError("another story")

    monkeypatch.setattr(build, "load_library", fail)
    monkeypatch.setattr(cpu_backend, "_loaded", False)
    monkeypatch.setattr(cpu_backend, "_reason", None)
    assert cpu_backend.why_unavailable() == "it cannot be built: 42"


def test_an_interrupted_load_is_tried_again_and_threads_wait_for_it(monkeypatch: pytest.MonkeyPatch) -> None:
    begun = threading.Event()

    def load() -> None:
        if not begun.is_set():
            begun.set()
            raise KeyboardInterrupt
        time.sleep(0.2)
        loaded.append(True)

    loaded: list[bool] = []
    monkeypatch.setattr(build, "load_library", load)
    monkeypatch.setattr(cpu_backend, "_loaded", False)
    monkeypatch.setattr(cpu_backend, "_reason", None)
    with pytest.raises(KeyboardInterrupt):
        cpu_backend.why_unavailable()
    with ThreadPoolExecutor(4) as pool:
        found = list(pool.map(lambda _: (cpu_backend.why_unavailable(), len(loaded)), range(4)))
    assert found == [(None, 1)] * 4


def test_without_a_compiler_the_reference_runs_and_a_forced_backend_is_refused(
    sources: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CXX", "/nowhere/c++")
    monkeypatch.setattr(cpu_backend, "_loaded", False)
    monkeypatch.setattr(cpu_backend, "_reason", None)
    monkeypatch.setattr(backend, "_chosen", None)
    backend.set_backend("auto")
    x, weight = torch.randn(600, 128), torch.randn(2, 64, 64)  # enough for a kernel to be worthwhile
    result = ops.split_linear(x, weight)
    assert torch.equal(result, backend.BACKENDS["reference"].functions["split_linear"](x, weight, None))
    for choice in ops.explain():
        assert "cpu" not in choice.backends and "/nowhere/c++" in choice.why_not["cpu"]
    with refused("the backend 'cpu' cannot run here", "/nowhere/c++"):
        ops.set_backend("cpu")
