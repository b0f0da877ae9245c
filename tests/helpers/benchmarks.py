"""How tests reach the benchmarks, which are scripts beside the package."""

import importlib
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType

from smht.ops import backend

FOLDER = Path(__file__).parents[2] / "benchmarks"


@contextmanager
def benchmark(name: str) -> Iterator[ModuleType]:
    """The benchmark called `name` as a module; it and the backend that it chooses are forgotten afterwards."""
    chosen, known = backend._chosen, set(sys.modules)
    sys.path.insert(0, str(FOLDER))
    try:
        yield importlib.import_module(name)
    finally:
        sys.path.remove(str(FOLDER))
        backend._chosen = chosen
        for script in FOLDER.glob("*.py"):
            if script.stem not in known:
                sys.modules.pop(script.stem, None)
