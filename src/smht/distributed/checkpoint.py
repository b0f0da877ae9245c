"""Tensors on disk that ranks write and read in parts: torch.distributed.checkpoint, in files of safetensors.

Each rank writes what it has, so that nowhere the whole is needed. Who reads takes the numbers that it needs out of
whichever files have them: another number of ranks, or tensors cut along another axis, make no difference. The format
that torch.distributed.checkpoint has of its own keeps a pickle beside, which may run anything when it is loaded.
"""

import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch.distributed as dist
from torch import Tensor
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.hf_storage import HuggingFaceStorageReader, HuggingFaceStorageWriter
from torch.distributed.checkpoint.state_dict_loader import load
from torch.distributed.checkpoint.state_dict_saver import save

from smht.errors import first_line


def save_parts(tensors: Mapping[str, Tensor], folder: Path) -> None:
    """Write tensors into files of a folder; every rank has to call it.

    Args:
        tensors: by name; a `DTensor` where this rank has a part, a plain tensor where all ranks have the same.
        folder: where to; all ranks see it, and it is empty.

    Raises:
        OSError: a rank could not write.
    """
    writer = HuggingFaceStorageWriter(str(folder), save_distributed=True)
    with _as_one_failure():
        save(dict(tensors), storage_writer=writer, no_dist=not dist.is_initialized())


def load_parts(tensors: Mapping[str, Tensor], folder: Path) -> None:
    """Fill tensors with what files of safetensors in a folder have under their names; nothing is sent.

    Args:
        tensors: as `save_parts` takes them, by names that are there; changed in place.
        folder: what `save_parts` has written, or whole tensors in any files of safetensors.

    Raises:
        OSError: a file cannot be read.
        RuntimeError: a name is not there, or has another shape.
    """
    if not tensors:
        return  # there is no file then, and whoever copied the folder may have left out an empty one
    with _as_one_failure():
        load(dict(tensors), storage_reader=HuggingFaceStorageReader(str(folder)), no_dist=True)


@contextmanager
def _as_one_failure() -> Iterator[None]:
    """Raise what went wrong on the first rank that failed, in place of what is no `Exception` and tells of all."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "torch.distributed is disabled, unavailable or uninitialized")
        try:
            yield
        except CheckpointException as error:
            failures: dict[int, Any] = error.failures
            failure = failures[min(failures)][0]
            # What PyTorch makes of a file whose beginning it could not read.
            if isinstance(failure, AssertionError):
                raise OSError(first_line(failure)) from None
            raise failure from None
