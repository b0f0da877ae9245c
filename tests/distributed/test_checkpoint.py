"""What cannot be read of a checkpoint's files is said as the contract says."""

from pathlib import Path

import pytest
import torch

from smht.distributed.checkpoint import load_parts, save_parts


def test_what_was_written_is_read(tmp_path: Path) -> None:
    save_parts({"a": torch.arange(3.0)}, tmp_path)
    found = torch.zeros(3)
    load_parts({"a": found}, tmp_path)
    assert torch.equal(found, torch.arange(3.0))


def test_a_damaged_file_is_one_that_cannot_be_read(tmp_path: Path) -> None:
    (tmp_path / "a.safetensors").write_bytes(b"no tensors at all")
    with pytest.raises(OSError, match="header"):
        load_parts({"a": torch.zeros(3)}, tmp_path)


@pytest.mark.parametrize(("name", "size"), [("b", 3), ("a", 4)])
def test_other_names_and_shapes_are_refused(tmp_path: Path, name: str, size: int) -> None:
    save_parts({"a": torch.arange(3.0)}, tmp_path)
    with pytest.raises((RuntimeError, ValueError)):
        load_parts({name: torch.zeros(size)}, tmp_path)


def test_of_no_tensors_no_folder_is_needed(tmp_path: Path) -> None:
    save_parts({}, tmp_path)
    load_parts({}, tmp_path / "left out by a copy")
