"""Corpora of files, folders, globs, standard input, and the Python standard library's source."""

import os
import platform
import stat
import sys
import sysconfig
from collections.abc import Iterable, Sequence
from difflib import get_close_matches
from glob import has_magic
from pathlib import Path
from typing import BinaryIO, NoReturn

from smht.errors import UsageError, did_you_mean, first_line
from smht.tasks.corpus import Corpus, Document, counted

STANDARD_INPUT = "-"
STANDARD_LIBRARY = "python-standard-library"

_SNIFFED_BYTES = 8192
_TEST_FOLDERS = frozenset({"test", "tests", "idle_test"})
_INSTALLED_FOLDERS = frozenset({"site-packages", "dist-packages", "__pycache__"})
_LARGEST_LIBRARY_FILE = 1 << 20


def read_texts(patterns: Sequence[str], *, stdin: BinaryIO | None = None) -> Corpus:
    """Read files, folders, globs and standard input, in the order given.

    Args:
        patterns: Each is a file; a folder (its regular files, recursively, sorted, without hidden ones); a glob
            of files, where `**` is any number of folders and hidden names never match; or `-`. A file with a
            NUL byte in its first 8 KiB is binary: skipped where a folder or a glob found it, read where it was
            named. A file found twice is read once. A document's name is relative to the folder given, or to
            the fixed part of the glob; a file goes by its own name.
        stdin: What `-` reads; by default the process's standard input.

    Raises:
        UsageError: Nothing to read, or something that cannot be read, named.
    """
    if not patterns:
        raise UsageError("no text was given: name a file, a folder, a glob, or - for standard input")
    reader = _Reader(stdin)
    for pattern in patterns:
        reader.read(pattern)
    absolute = (p if p == STANDARD_INPUT else str(Path(p).absolute()) for p in patterns)
    return Corpus(reader.describe(patterns), tuple(dict.fromkeys(absolute)), tuple(reader.documents))


def take_standard_input(sources: Sequence[str], stdin: BinaryIO | None) -> bytes | None:
    """What `-` among `sources` stands for, to be read as often as one likes; None where there is no `-`."""
    if STANDARD_INPUT not in sources:
        return None
    return (stdin or sys.stdin.buffer).read()


def standard_library() -> Corpus:
    """The source of the standard library of the Python that runs this, without its tests.

    Installed packages, files over 1 MiB and what building Python generated (paths and compiler flags, which
    differ between machines) are left out.

    Raises:
        UsageError: This Python came without its source.
    """
    folder = Path(sysconfig.get_path("stdlib"))
    documents = []
    try:
        for path in _files_under(folder, _TEST_FOLDERS | _INSTALLED_FOLDERS) if folder.is_dir() else ():
            name = path.relative_to(folder).as_posix()
            generated = name.startswith(("_sysconfigdata", "config-"))
            if path.suffix == ".py" and not generated and 0 < path.stat().st_size <= _LARGEST_LIBRARY_FILE:
                documents.append(Document(name, path.read_bytes()))
    except OSError as error:
        _refuse(error, str(folder))
    if not documents:
        raise UsageError(f"this Python came without its standard library's source in {str(folder)!r}: pass text files")
    version = platform.python_version()
    description = f"the Python {version} standard library's source, without tests"
    return Corpus(description, (STANDARD_LIBRARY,), tuple(documents))


class _Reader:
    """Collects the documents of one `read_texts` call."""

    def __init__(self, stdin: BinaryIO | None) -> None:
        self.documents: list[Document] = []
        self._stdin = stdin
        self._seen: set[Path | str] = set()
        self._binary: set[Path] = set()

    def read(self, pattern: str) -> None:
        """Add what `pattern` stands for."""
        try:
            if pattern == STANDARD_INPUT:
                self._read_stdin()
            else:
                self._read_path(pattern, Path(pattern).absolute())
        except OSError as error:
            _refuse(error, pattern)

    def describe(self, patterns: Sequence[str]) -> str:
        """The patterns, shortened, and how many binary files were skipped."""
        names = ["standard input" if p == STANDARD_INPUT else p for p in patterns]
        listed = ", ".join(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "")
        skipped = len(self._binary - self._seen)
        return listed + (f" ({counted(skipped, 'binary file')} skipped)" if skipped else "")

    def _read_stdin(self) -> None:
        if STANDARD_INPUT in self._seen:
            return
        data = (self._stdin or sys.stdin.buffer).read()
        if not data:
            raise UsageError("standard input is empty")
        self._add(STANDARD_INPUT, STANDARD_INPUT, data)

    def _read_path(self, pattern: str, path: Path) -> None:
        try:
            mode = path.stat().st_mode
        except FileNotFoundError:
            if not has_magic(pattern):
                raise UsageError(f"no such file or folder: {pattern!r}{_neighbours(path)}") from None
            folder, paths = _expand(pattern, path)
            self._add_found(pattern, folder, paths)
            return
        if stat.S_ISDIR(mode):
            self._add_found(pattern, path, _files_under(path))
        elif stat.S_ISREG(mode):
            self._add_named(pattern, path)
        else:
            raise UsageError(f"{pattern!r} is neither a file nor a folder: to read a pipe, redirect it to - instead")

    def _add_named(self, pattern: str, path: Path) -> None:
        data = path.read_bytes()
        if not data:
            raise UsageError(f"{pattern!r} is empty")
        self._add(path.resolve(), path.name, data)

    def _add_found(self, pattern: str, folder: Path, paths: Iterable[Path]) -> None:
        has_text, binary = False, 0
        for path in paths:
            real = path.resolve()
            data = b"" if real in self._seen else _read_unless_binary(path)
            if data is None:
                self._binary.add(real)
                binary += 1
            elif data:
                self._add(real, path.relative_to(folder).as_posix(), data)
            has_text = has_text or real in self._seen
        if not has_text and binary:
            raise UsageError(f"{pattern!r} holds only binary files ({binary}): name a file itself to read it as bytes")
        if not has_text:
            raise UsageError(f"{pattern!r} holds no text: its files are missing, hidden or empty")

    def _add(self, identity: Path | str, name: str, data: bytes) -> None:
        if identity not in self._seen:
            self._seen.add(identity)
            self.documents.append(Document(name, data))


def _refuse(error: OSError, fallback: str) -> NoReturn:
    name = fallback if error.filename is None else os.fsdecode(error.filename)
    raise UsageError(f"cannot read {name!r}: {(error.strerror or first_line(error)).lower()}") from error


def _read_unless_binary(path: Path) -> bytes | None:
    with path.open("rb") as file:
        head = file.read(_SNIFFED_BYTES)
        return None if b"\0" in head else head + file.read()


def _files_under(folder: Path, skipped: frozenset[str] = frozenset()) -> list[Path]:
    """The regular files under `folder`, sorted; no hidden ones, none below folders named in `skipped`."""

    def fail(error: OSError) -> NoReturn:
        raise error

    files: list[Path] = []
    visited: set[str] = set()
    for root, folders, names in os.walk(folder, onerror=fail, followlinks=True):
        real = os.path.realpath(root)
        if real in visited:
            folders.clear()
            continue
        visited.add(real)
        folders[:] = sorted(name for name in folders if not name.startswith(".") and name not in skipped)
        files += (Path(root, name) for name in names if not name.startswith("."))
    return sorted((path for path in files if path.is_file()), key=Path.as_posix)


def _expand(pattern: str, path: Path) -> tuple[Path, list[Path]]:
    """The folder in which the glob `path` begins, and the files that match it, sorted."""
    folder, parts = Path(path.anchor), list(path.parts[1:])
    while (folder / parts[0]).is_dir():
        folder /= parts.pop(0)
    if parts[-1] == "**":
        parts.append("*")
    try:
        matches = [match for match in folder.glob("/".join(parts)) if match.is_file()]
    except ValueError as error:
        raise UsageError(f"{pattern!r} is no glob: {first_line(error).lower()}") from error
    visible = [m for m in matches if not any(part.startswith(".") for part in m.relative_to(folder).parts)]
    if not visible:
        raise UsageError(f"{pattern!r} matches no file")
    return folder, sorted(visible, key=Path.as_posix)


def _neighbours(path: Path) -> str:
    """The end of an error line about a missing `path`: names like it in its folder, or that there is none."""
    if not path.parent.is_dir():
        return f" (there is no folder {str(path.parent)!r})"
    near = get_close_matches(path.name, [entry.name for entry in path.parent.iterdir() if entry.exists()], cutoff=0.5)
    return f"; {did_you_mean(path.name, near)}" if near else ""
