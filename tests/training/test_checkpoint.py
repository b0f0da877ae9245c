import errno
import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from smht.training import files
from smht.training.checkpoint import (
    MANIFEST,
    Found,
    checkpoint_path,
    find_checkpoint,
    find_damage,
    list_checkpoints,
    remove_newer,
    step_of,
    write_checkpoint,
)

CONTENTS = {"model.safetensors": b"weights " * 50, "optimizer.pt": b"moments " * 80, "deep/rng_state.pth": b"dice"}


def fill(folder: Path) -> None:
    for name, data in CONTENTS.items():
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_bytes(data)


def write(folder: Path, *steps: int, keep: int = 100) -> None:
    for step in steps:
        write_checkpoint(folder, step, fill, keep)


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


@pytest.fixture
def checkpoint(tmp_path: Path) -> Path:
    write(tmp_path, 5)
    return checkpoint_path(tmp_path, 5)


# Writing


def test_a_checkpoint_holds_its_files_and_their_hashes(tmp_path: Path) -> None:
    written = write_checkpoint(tmp_path, 500, fill, keep=3)
    assert written == tmp_path / "step-000500"
    assert {name: (written / name).read_bytes() for name in CONTENTS} == CONTENTS
    manifest = json.loads((written / MANIFEST).read_text())
    assert manifest == {"step": 500, "sha256": {name: files.sha256(written / name) for name in CONTENTS}}
    assert find_damage(written) is None
    assert names(tmp_path) == ["step-000500"]


def test_the_newest_are_kept(tmp_path: Path) -> None:
    for step in range(100, 700, 100):
        write(tmp_path, step, keep=3)
        assert [step_of(path) for path in list_checkpoints(tmp_path)] == list(
            range(max(100, step - 200), step + 1, 100)
        )
    write(tmp_path, 700, keep=1)
    assert names(tmp_path) == ["step-000700"]


def test_newest_means_the_most_steps_not_the_first_in_the_alphabet(tmp_path: Path) -> None:
    steps = [999_999, 1_000_000, 1_500_000, 20_000_000]
    write(tmp_path, *steps)
    assert [step_of(path) for path in list_checkpoints(tmp_path)] == steps
    assert find_checkpoint(tmp_path).newest_good == checkpoint_path(tmp_path, 20_000_000)
    write(tmp_path, 20_000_001, keep=2)
    assert [step_of(path) for path in list_checkpoints(tmp_path)] == [20_000_000, 20_000_001]


def test_rotation_never_touches_newer_ones(tmp_path: Path) -> None:
    write(tmp_path, 10, 20, 30)
    write(tmp_path, 15, keep=1)
    assert [step_of(path) for path in list_checkpoints(tmp_path)] == [15, 20, 30]


def test_writing_the_same_step_again_replaces_it(tmp_path: Path) -> None:
    write(tmp_path, 5)
    write_checkpoint(tmp_path, 5, lambda folder: (folder / "other").write_bytes(b"1"), keep=3)
    assert names(tmp_path) == ["step-000005"]
    assert names(tmp_path / "step-000005") == [MANIFEST, "other"]
    assert find_damage(tmp_path / "step-000005") is None


@pytest.mark.parametrize(
    "error", [OSError(errno.ENOSPC, "No space left on device"), RuntimeError(), KeyboardInterrupt()]
)
def test_a_failure_in_the_middle_leaves_the_earlier_ones_and_nothing_else(tmp_path: Path, error: BaseException) -> None:
    def fail(folder: Path) -> None:
        fill(folder)
        raise error

    write(tmp_path, 1, 2)
    for step in (2, 3):
        with pytest.raises(type(error)):
            write_checkpoint(tmp_path, step, fail, keep=1)
        assert names(tmp_path) == ["step-000001", "step-000002"]
    assert find_checkpoint(tmp_path) == Found(checkpoint_path(tmp_path, 2), ())


# Damage


def test_a_file_cut_short_at_any_length_is_found(checkpoint: Path) -> None:
    for name, data in CONTENTS.items():
        for length in {0, 1, len(data) // 2, len(data) - 1}:
            (checkpoint / name).write_bytes(data[:length])
            assert find_damage(checkpoint) == (
                f"step-000005/{name} is damaged (its contents are not those that were written)"
            )
        (checkpoint / name).write_bytes(data)
    assert find_damage(checkpoint) is None


@given(st.sampled_from(sorted(CONTENTS)), st.data())
def test_a_flipped_bit_is_found(tmp_path_factory: pytest.TempPathFactory, name: str, data: st.DataObject) -> None:
    folder = tmp_path_factory.mktemp("run")
    write(folder, 5)
    contents = bytearray(CONTENTS[name])
    bit = data.draw(st.integers(0, 8 * len(contents) - 1))
    contents[bit // 8] ^= 1 << bit % 8
    (folder / "step-000005" / name).write_bytes(contents)
    damage = find_damage(folder / "step-000005")
    assert damage is not None
    assert damage.startswith(f"step-000005/{name} is damaged")


def test_a_longer_file_is_found(checkpoint: Path) -> None:
    with (checkpoint / "optimizer.pt").open("ab") as file:
        file.write(b"\0")
    assert "optimizer.pt is damaged" in str(find_damage(checkpoint))


@pytest.mark.parametrize("name", [*CONTENTS, MANIFEST])
def test_a_missing_file_is_found(checkpoint: Path, name: str) -> None:
    (checkpoint / name).unlink()
    assert find_damage(checkpoint) == f"step-000005/{name} is missing"


def test_a_folder_in_the_place_of_a_file_is_found(checkpoint: Path) -> None:
    (checkpoint / "optimizer.pt").unlink()
    (checkpoint / "optimizer.pt").mkdir()
    assert find_damage(checkpoint) == "step-000005/optimizer.pt is missing"


def test_a_disk_that_cannot_be_read_is_damage_too(checkpoint: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(path: Path) -> str:
        raise OSError(errno.EIO, "Input/output error")

    monkeypatch.setattr(files, "sha256", fail)
    assert find_damage(checkpoint) == "step-000005/deep/rng_state.pth cannot be read (Input/output error)"


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\xff\xfe garbage \0",
        b"{",
        b"[]",
        b"1",
        b"null",
        b'"sha256"',
        b"{}",
        b'{"step": 5}',
        b'{"sha256": {"model.safetensors": "x"}}',
        b'{"step": 5, "sha256": null}',
        b'{"step": 5, "sha256": []}',
        b'{"step": 5, "sha256": {}}',
        b'{"step": 5, "sha256": "text"}',
    ],
)
def test_a_garbage_manifest_is_damage_not_an_error(checkpoint: Path, data: bytes) -> None:
    (checkpoint / MANIFEST).write_bytes(data)
    assert str(find_damage(checkpoint)).startswith(f"step-000005/{MANIFEST} is damaged")


def test_a_manifest_cut_short_is_found_at_every_length(checkpoint: Path) -> None:
    whole = (checkpoint / MANIFEST).read_bytes()
    # Without its last byte, a line end, it says the same.
    for length in range(0, len(whole) - 1, 7):
        (checkpoint / MANIFEST).write_bytes(whole[:length])
        assert find_damage(checkpoint) == f"step-000005/{MANIFEST} is damaged"


def test_any_changed_byte_of_a_manifest_that_matters_is_found(checkpoint: Path) -> None:
    whole = (checkpoint / MANIFEST).read_bytes()
    for place in range(len(whole)):
        if whole[place : place + 1].isspace():
            continue
        (checkpoint / MANIFEST).write_bytes(whole[:place] + bytes([whole[place] ^ 1]) + whole[place + 1 :])
        assert find_damage(checkpoint) is not None, place


def test_a_checkpoint_under_the_name_of_another_step_is_found(tmp_path: Path) -> None:
    write(tmp_path, 5)
    (tmp_path / "step-000005").rename(tmp_path / "step-000050")
    assert "another checkpoint" in str(find_damage(tmp_path / "step-000050"))


# Finding


def truncate(checkpoint: Path) -> None:
    (checkpoint / "optimizer.pt").write_bytes(CONTENTS["optimizer.pt"][:99])


def lose_manifest(checkpoint: Path) -> None:
    (checkpoint / MANIFEST).unlink()


def empty(checkpoint: Path) -> None:
    shutil.rmtree(checkpoint)
    checkpoint.mkdir()


@pytest.mark.parametrize("spoil", [truncate, lose_manifest, empty])
def test_the_newest_good_one_is_found_and_the_damaged_ones_named(tmp_path: Path, spoil: Callable[[Path], Any]) -> None:
    write(tmp_path, 10, 20, 30, 40)
    assert find_checkpoint(tmp_path) == Found(checkpoint_path(tmp_path, 40), ())
    spoil(checkpoint_path(tmp_path, 10))
    assert find_checkpoint(tmp_path) == Found(checkpoint_path(tmp_path, 40), ())
    spoil(checkpoint_path(tmp_path, 40))
    spoil(checkpoint_path(tmp_path, 30))
    found = find_checkpoint(tmp_path)
    assert found.newest_good == checkpoint_path(tmp_path, 20)
    assert [line.split("/")[0] for line in found.damaged] == ["step-000040", "step-000030"]
    assert all(len(line.splitlines()) == 1 for line in found.damaged)
    spoil(checkpoint_path(tmp_path, 20))
    found = find_checkpoint(tmp_path)
    assert found.newest_good is None
    assert len(found.damaged) == 4


def test_nothing_to_find(tmp_path: Path) -> None:
    for folder in (tmp_path, tmp_path / "missing"):
        assert list_checkpoints(folder) == []
        assert find_checkpoint(folder) == Found(None, ())
        remove_newer(folder, 0)


def test_what_is_no_checkpoint_is_passed_over(tmp_path: Path) -> None:
    write(tmp_path, 5)
    for name in (".step-000009.partial", "step-9", "step-000009x", "step-", "notes"):
        (tmp_path / name).mkdir()
    (tmp_path / "step-000008").write_bytes(b"a file")
    assert list_checkpoints(tmp_path) == [tmp_path / "step-000005"]
    assert find_checkpoint(tmp_path) == Found(tmp_path / "step-000005", ())
    write(tmp_path, 6, keep=1)
    assert {"step-000006", "step-000008", "notes", "step-9"} < set(names(tmp_path))


# Going back


def test_newer_and_half_written_ones_are_removed(tmp_path: Path) -> None:
    write(tmp_path, 10, 20, 30)
    truncate(checkpoint_path(tmp_path, 30))
    for name in (".step-000030.partial", ".step-000040.partial", ".step-000020.old.partial"):
        shutil.copytree(tmp_path / "step-000020", tmp_path / name)
    remove_newer(tmp_path, 20)
    assert names(tmp_path) == ["step-000010", "step-000020"]
    assert find_checkpoint(tmp_path) == Found(checkpoint_path(tmp_path, 20), ())


def test_half_written_ones_do_not_disturb_the_next(tmp_path: Path) -> None:
    (tmp_path / ".step-000010.partial").mkdir()
    (tmp_path / ".step-000010.partial/stale.bin").write_bytes(b"1")
    write(tmp_path, 10)
    assert names(tmp_path) == ["step-000010"]
    assert "stale.bin" not in names(tmp_path / "step-000010")
