"""Files that are either the old ones or the new ones, whatever happens while they are written."""

import hashlib
import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any


def write_json(path: Path, value: Any) -> None:
    """Replace `path` by `value` as JSON; a crash leaves the old file or the new one."""
    text = json.dumps(value, indent=2, ensure_ascii=False) + "\n"
    # A file name that is no UTF-8 holds lone surrogates; what this makes of them is JSON's own escape.
    write_bytes(path, text.encode(errors="backslashreplace"))


def write_bytes(path: Path, data: bytes) -> None:
    """Replace `path` by `data`; a crash leaves the old file or the new one."""
    beside = path.with_name(f".{path.name}.partial")
    try:
        with beside.open("wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        beside.replace(path)
    except BaseException:
        beside.unlink(missing_ok=True)
        raise
    sync_folder(path.parent)


def replace_folder(folder: Path, fill: Callable[[Path], None]) -> None:
    """Replace `folder` by what `fill` writes into the empty folder that it is given.

    The new folder is written beside the old one, brought to disk and renamed into place. Where `fill` fails, the
    old folder is untouched and nothing else is left. A crash between the two renames of a replacement leaves both
    folders beside, whole, under hidden names.
    """
    beside = folder.with_name(f".{folder.name}.partial")
    shutil.rmtree(beside, ignore_errors=True)
    beside.mkdir(parents=True)
    try:
        fill(beside)
        for path in sorted(beside.rglob("*")):
            (sync_folder if path.is_dir() else sync_file)(path)
        sync_folder(beside)
    except BaseException:
        shutil.rmtree(beside, ignore_errors=True)
        raise
    old = folder.with_name(f".{folder.name}.old.partial")
    shutil.rmtree(old, ignore_errors=True)
    if folder.exists():
        folder.replace(old)
    beside.replace(folder)
    sync_folder(folder.parent)
    shutil.rmtree(old, ignore_errors=True)


def fill_folder(folder: Path, fill: Callable[[Path], None]) -> None:
    """Make `folder`, or use the empty one that is there, and put into it what `fill` writes.

    A folder that was not there appears whole or not at all. One that was there stays the same folder, since it may
    be a mount point, a link or where somebody stands; only a crash while names are moved could leave a part.
    """
    if not folder.exists():
        replace_folder(folder, fill)
        return
    beside = folder / ".partial"
    replace_folder(beside, fill)
    move_files(beside, folder)


def move_files(source: Path, target: Path) -> None:
    """Move all that is in `source` into `target`, each replacing what has its name at once; remove `source`."""
    for path in sorted(source.iterdir()):
        sync_file(path)
        path.replace(target / path.name)
    source.rmdir()
    sync_folder(target)


def sync_file(path: Path) -> None:
    """Bring a file's contents to disk; folders are left alone."""
    if path.is_file():
        with path.open("rb") as file:
            os.fsync(file.fileno())


def sync_folder(path: Path) -> None:
    """Bring a folder's names to disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def sha256(path: Path) -> str:
    """Hexadecimal hash of a file's contents."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def free_bytes(path: Path) -> int:
    """Free space on the disk that `path` is, or would be, on."""
    existing = path.absolute()
    while not existing.exists():
        existing = existing.parent
    return shutil.disk_usage(existing).free
