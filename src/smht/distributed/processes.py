"""The processes that train one run together, and how they agree: on what to do, on what was done, and on errors.

Rank 0 alone writes files and speaks to the user. An error that a user can act on is raised on every rank, and told by
rank 0; where it is another rank's, it is told with that rank's number.
"""

import hashlib
import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch.distributed.rendezvous import rendezvous
from torch.nn.parallel import DistributedDataParallel

import smht
from smht.distributed.launch import check_launcher, started_by_a_launcher
from smht.distributed.meeting import meet, wait_for_listener
from smht.distributed.mesh import Mesh
from smht.errors import SmhtError, UsageError, first_line

T = TypeVar("T")


class ToldError(SmhtError):
    """What another rank tells the user; nothing is left to print.

    Args:
        message: what it tells.
        exit_code: of the error there.
    """

    is_told = True

    def __init__(self, message: str, exit_code: int) -> None:
        super().__init__(message)
        self.exit_code = exit_code


class Processes:
    """All processes of a run; a single one talks to nobody.

    Args:
        mesh: how many share the batch and how many a model; all of them the batch if not given.

    Attributes:
        size: how many.
        rank: which of them this is.
        mesh: who shares what.

    Raises:
        UsageError: the mesh is none, or one for another number of processes.
    """

    def __init__(self, mesh: str | None = None) -> None:
        is_one_of_many = dist.is_available() and dist.is_initialized()
        self.size = dist.get_world_size() if is_one_of_many else 1
        self.rank = dist.get_rank() if is_one_of_many else 0
        self.mesh = Mesh.parse(mesh, self.size)

    @property
    def is_first(self) -> bool:
        """Whether this is the one that writes files and speaks to the user."""
        return self.rank == 0

    def collect(self, value: T) -> list[T]:
        """Everyone's value, by rank."""
        if self.size == 1:
            return [value]
        values: list[Any] = [None] * self.size
        dist.all_gather_object(values, value)
        return values

    def any(self, flag: bool) -> bool:
        """Whether it is true on some rank."""
        if self.size == 1:
            return flag
        flags = torch.tensor([int(flag)])
        dist.all_reduce(flags)
        return bool(flags)

    def together(self, action: Callable[[], T]) -> T:
        """Do something on every rank; go on only where it succeeded on all of them.

        Raises:
            SmhtError: it failed on some rank for a reason that a user can act on.
        """
        if self.size == 1:
            return action()
        error: SmhtError | None = None
        result: Any = None
        try:
            result = action()
        except SmhtError as raised:
            error = raised
        told = self.collect(None if error is None else (str(error), error.exit_code))
        for rank, failure in enumerate(told):
            if failure is None:
                continue
            message, exit_code = failure
            if not self.is_first:
                raise ToldError(message, exit_code) from error
            if rank == 0 and error is not None:
                raise error
            kind = UsageError if exit_code == UsageError.exit_code else SmhtError
            raise kind(f"on rank {rank} of {self.size}: {message}")
        return result

    def first(self, action: Callable[[], T]) -> T:
        """Do something on rank 0 while the others wait; its result on all.

        Raises:
            SmhtError: it failed.
        """
        result = self.together(lambda: action() if self.is_first else None)
        return self.collect(result)[0]  # pyright: ignore[reportReturnType]

    def agree(self, facts: Mapping[str, str]) -> None:
        """Refuse ranks that have something else than rank 0.

        Args:
            facts: what has to be the same, by a name for the user.

        Raises:
            UsageError: something differs.
        """
        expected = self.collect(dict(facts))[0]

        def compare() -> None:
            for name, value in facts.items():
                if value != expected[name]:
                    raise UsageError(
                        f"{name} is {_shorten(value)} here and {_shorten(expected[name])} on rank 0: "
                        "give all ranks the same"
                    )

        self.together(compare)


def _shorten(value: str) -> str:
    return value if len(value) <= 20 else value[:12]


def code_hash() -> str:
    """SHA-256 of this package's Python files, names included."""
    digest = hashlib.sha256()
    folder = Path(smht.__file__).parent
    for path in sorted(folder.rglob("*.py")):
        digest.update(path.relative_to(folder).as_posix().encode())
        digest.update(path.read_bytes())
    return digest.hexdigest()


def join_processes(device: str | None, timeout: float) -> Processes:
    """Meet the other processes that a launcher has started, if it has.

    Args:
        device: where to train, as the user asked; GPUs are talked to through NCCL.
        timeout: seconds that a rank waits for another one, now and later.

    Raises:
        UsageError: the launcher's environment is incomplete or makes no sense, or its port is taken.
        SmhtError: the others did not come.
    """
    started = started_by_a_launcher()
    if started == 1:
        return Processes()
    check_launcher(started)
    uses_gpus = device != "cpu" and torch.cuda.is_available()
    if uses_gpus:
        torch.cuda.set_device(int(os.environ.get("LOCAL_RANK", "0")))
    where = f"{os.environ['MASTER_ADDR']}:{os.environ['MASTER_PORT']}"
    patience = timedelta(seconds=timeout)
    try:
        # The first rank is who listens, unless torchrun or --processes does.
        if os.environ["RANK"] != "0" or os.environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True":
            wait_for_listener(os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"]), timeout)
        store, rank, size = next(rendezvous("env://", timeout=patience))
        store = meet(store, rank, size, timeout)
        backend = "cpu:gloo,cuda:nccl" if uses_gpus else "gloo"
        dist.init_process_group(backend, store=store, rank=rank, world_size=size, timeout=patience)
    except OSError as error:
        reason = error.strerror or first_line(error)
        raise SmhtError(f"rank {os.environ['RANK']} cannot reach {where} in {timeout:g} s: {reason}") from None
    except dist.DistNetworkError as error:
        if "EADDRINUSE" in str(error):
            raise UsageError(f"{where} is in use by another program: choose another MASTER_PORT") from None
        raise SmhtError(f"rank {os.environ['RANK']} cannot reach {where}: {first_line(error)}") from None
    except (dist.DistStoreError, ValueError) as error:
        raise SmhtError(f"rank {os.environ['RANK']} waited in vain at {where}: {first_line(error)}") from None
    except RuntimeError as error:
        raise SmhtError(f"rank {os.environ['RANK']} lost the others at {where}: {first_line(error)}") from error
    return Processes()


@contextmanager
def as_if_alone(mesh: Mesh) -> Iterator[None]:
    """Keep transformers from dealing with the other processes by itself where they share a model, not the batch alone.

    It looks for them in the environment.
    """
    names = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE") if mesh.shares_model else ()
    hidden = {name: os.environ.pop(name) for name in names if name in os.environ}
    try:
        yield
    finally:
        os.environ.update(hidden)


def keep_constants_home(model: torch.nn.Module) -> None:
    """Keep DistributedDataParallel from sending buffers at every step: a model's are constants of its architecture."""
    names = [name for name, _ in model.named_buffers()]
    DistributedDataParallel._set_params_and_buffers_to_ignore_for_model(model, names)


def leave_processes() -> None:
    """Say goodbye, so that nobody waits."""
    if dist.is_available() and dist.is_initialized():
        dist.destroy_process_group()
