"""Checkpoints: `checkpoints/step-000500/`, each with a manifest of its files' hashes.

A checkpoint is complete or not there: it is written beside, brought to disk and renamed into place. Loading one
starts with comparing every file with the manifest, because a file that was cut short or changed later may still
load without complaint.
"""

import json
import re
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from smht.training import files

MANIFEST = "manifest.json"
_NAME = re.compile(r"step-(\d{6,})")


@dataclass(frozen=True)
class Found:
    """What looking for a checkpoint to resume from came to.

    Attributes:
        newest_good: the newest checkpoint that is whole, or None.
        damaged: a line for each newer one that is not.
    """

    newest_good: Path | None
    damaged: tuple[str, ...]


def checkpoint_path(folder: Path, step: int) -> Path:
    """Where the checkpoint of `step` is, in the folder of all checkpoints."""
    return folder / f"step-{step:06d}"


def step_of(checkpoint: Path) -> int:
    """The step that a checkpoint was taken after."""
    match = _NAME.fullmatch(checkpoint.name)
    assert match is not None, checkpoint
    return int(match[1])


def list_checkpoints(folder: Path) -> list[Path]:
    """All checkpoints in `folder`, the oldest first."""
    if not folder.is_dir():
        return []
    found = [path for path in folder.iterdir() if path.is_dir() and _NAME.fullmatch(path.name)]
    return sorted(found, key=step_of)


def write_checkpoint(folder: Path, step: int, fill: Callable[[Path], None], keep: int) -> Path:
    """Write the checkpoint of `step`, then delete all but the `keep` newest.

    Args:
        folder: holds all checkpoints.
        step: how many steps were taken.
        fill: writes the files into the folder that it is given.
        keep: how many checkpoints to keep, this one included.

    Raises:
        OSError: the disk is full or cannot be written; earlier checkpoints are untouched.
    """

    def fill_with_manifest(beside: Path) -> None:
        fill(beside)
        hashes = {
            path.relative_to(beside).as_posix(): files.sha256(path)
            for path in sorted(beside.rglob("*"))
            if path.is_file()
        }
        files.write_json(beside / MANIFEST, {"step": step, "sha256": hashes})

    target = checkpoint_path(folder, step)
    files.replace_folder(target, fill_with_manifest)
    older = [path for path in list_checkpoints(folder) if step_of(path) < step]
    for path in older[: max(0, len(older) - (keep - 1))]:
        shutil.rmtree(path)
    return target


def find_damage(checkpoint: Path) -> str | None:
    """One line about the first thing that is wrong with a checkpoint, or None if it is whole."""
    try:
        manifest = json.loads((checkpoint / MANIFEST).read_text(encoding="utf-8"))
        step, hashes = manifest["step"], dict(manifest["sha256"])
    except FileNotFoundError:
        return f"{checkpoint.name}/{MANIFEST} is missing"
    except (ValueError, KeyError, TypeError, OSError):
        return f"{checkpoint.name}/{MANIFEST} is damaged"
    if step != step_of(checkpoint) or not hashes:
        return f"{checkpoint.name}/{MANIFEST} is damaged (it is the list of another checkpoint, or of none)"
    for name, expected in hashes.items():
        damage = _find_damage_of_file(checkpoint / name, expected)
        if damage is not None:
            return f"{checkpoint.name}/{name} {damage}"
    return None


def _find_damage_of_file(path: Path, expected: str) -> str | None:
    if not path.is_file():
        return "is missing"
    try:
        contents = files.sha256(path)
    except OSError as error:
        return f"cannot be read ({error.strerror})"
    return None if contents == expected else "is damaged (its contents are not those that were written)"


def find_checkpoint(folder: Path) -> Found:
    """The newest whole checkpoint, and what is wrong with those that are newer."""
    damaged = []
    for checkpoint in reversed(list_checkpoints(folder)):
        damage = find_damage(checkpoint)
        if damage is None:
            return Found(checkpoint, tuple(damaged))
        damaged.append(damage)
    return Found(None, tuple(damaged))


def remove_newer(folder: Path, step: int) -> None:
    """Delete checkpoints after `step` and half-written ones: a run resumed at `step` writes them anew."""
    for checkpoint in list_checkpoints(folder):
        if step_of(checkpoint) > step:
            shutil.rmtree(checkpoint)
    for partial in folder.glob(".step-*.partial"):
        shutil.rmtree(partial)
