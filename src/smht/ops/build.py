"""Compiling the CPU kernels on the user's machine, once for each torch, instruction set and version of the sources.

torch's own loader guards a build by a file that a killed process leaves behind, after which every later process waits
for ever. Here each build has a directory of its own, under a lock that the operating system releases when its holder
dies; the finished library is renamed into place, so what is there is whole.
"""

import fcntl
import hashlib
import os
import shlex
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import torch

from smht.errors import SmhtError, first_line

SOURCES = Path(__file__).parent / "cpu"
FLAGS = ["-O3", "-fopenmp", "-fno-math-errno", "-fno-trapping-math", "-Wno-psabi"]
INSTRUCTION_SET_FLAGS = {
    "AVX512": ["-mavx512f", "-mavx512bw", "-mavx512dq", "-mavx512vl", "-mavx2", "-mfma", "-mf16c"],
    "AVX2": ["-mavx2", "-mfma", "-mf16c"],
}
"""By the name that torch gives what it found on this machine; any other is compiled for the compiler's default."""


def instruction_set() -> str:
    """What the kernels are compiled for: what torch chose for its own, and bf16 instructions where they are there."""
    capability = torch.backends.cpu.get_cpu_capability()
    has_bf16 = capability == "AVX512" and torch.cpu._is_avx512_bf16_supported()
    return f"{capability}_BF16" if has_bf16 else capability


def compiler_flags() -> list[str]:
    """Flags beside those that torch's loader adds."""
    capability, *bf16 = instruction_set().split("_")
    flags = [*FLAGS, *INSTRUCTION_SET_FLAGS.get(capability, [])]
    if capability in INSTRUCTION_SET_FLAGS:
        flags += [f"-DCPU_CAPABILITY={capability}", f"-DCPU_CAPABILITY_{capability}"]
    if capability == "AVX512":
        flags.append("-mprefer-vector-width=512")
    return [*flags, *(["-mavx512bf16"] if bf16 else [])]


def library_path() -> Path:
    """Where the library is or will be: its name says what it was compiled from and for."""
    from torch.utils.cpp_extension import get_default_build_root

    digest = hashlib.sha256(repr(compiler_flags()).encode())
    for source in sorted(SOURCES.iterdir()):
        digest.update(source.name.encode() + source.read_bytes())
    name = f"smht_cpu_torch{torch.__version__}_{instruction_set()}_{digest.hexdigest()[:16]}".lower().replace("+", "_")
    root = os.environ.get("TORCH_EXTENSIONS_DIR") or get_default_build_root()
    return Path(root) / "smht" / f"{name}.so"


def load_library() -> Path:
    """Build the library if it is not there yet, and load it into this process.

    Returns:
        Its path.

    Raises:
        SmhtError: it cannot be built or loaded; the message says why.
    """
    try:
        path = library_path()
        if not path.exists():
            _build(path)
        torch.ops.load_library(str(path))
    except ImportError as error:
        raise SmhtError(f"torch's extension loader does not work here: {first_line(error)}") from error
    except OSError as error:
        raise SmhtError(f"the library of the CPU kernels cannot be written or loaded: {first_line(error)}") from error
    return path


def _build(path: Path) -> None:
    compiler = os.environ.get("CXX", "c++")
    if shutil.which(compiler) is None:
        more = ", without arguments" if len(shlex.split(compiler)) > 1 else ""
        raise SmhtError(f"there is no C++ compiler: {compiler!r} was not found; install one or name it in CXX{more}")
    path.parent.mkdir(parents=True, exist_ok=True)
    with _locked(path.with_suffix(".lock")):
        if path.exists():
            return
        if sys.stderr.isatty():
            print("smht: compiling its CPU kernels, once, in about half a minute", file=sys.stderr)
        for left_behind in path.parent.glob(f"{path.stem}.building-*"):
            shutil.rmtree(left_behind, ignore_errors=True)
        with tempfile.TemporaryDirectory(prefix=f"{path.stem}.building-", dir=path.parent) as directory:
            compiled = _compile(path.stem, Path(directory))
            with compiled.open("rb") as library:
                os.fsync(library.fileno())
            compiled.replace(path)


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    """Hold the lock of this file, waiting for whoever holds it."""
    with path.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


@contextmanager
def _ninja_on_path() -> Iterator[None]:
    """torch looks for the program; in a virtual environment that is not active only the Python package is found."""
    try:
        import ninja
    except ImportError:
        yield
        return
    before = os.environ.get("PATH", "")
    os.environ["PATH"] = f"{before}{os.pathsep}{ninja.BIN_DIR}"
    try:
        yield
    finally:
        os.environ["PATH"] = before


def _compile(name: str, directory: Path) -> Path:
    from torch.utils import cpp_extension

    try:
        with _ninja_on_path():
            cpp_extension.load(
                name.replace(".", "_"),
                [str(source) for source in sorted(SOURCES.glob("*.cpp"))],
                extra_cflags=compiler_flags(),
                extra_ldflags=["-fopenmp"],
                build_directory=str(directory),
                is_python_module=False,
            )
    except (RuntimeError, subprocess.SubprocessError) as error:
        raise SmhtError(f"compiling the CPU kernels failed: {_compiler_message(error)}") from error
    return next(directory.glob("*.so"))


def _compiler_message(error: Exception) -> str:
    """The first line in which the compiler says what is wrong."""
    lines = str(error).splitlines()
    return next((line.strip() for line in lines if " error: " in line or "fatal error" in line), first_line(error))
