"""How many ranks share a batch, and how many share a model, and in which way."""

import math
from dataclasses import astuple, dataclass
from typing import Any

import torch
import torch.distributed as dist

from smht.distributed.ranks import Ranks
from smht.errors import UsageError, did_you_mean

AXES = ("data", "shard", "head")
"""What can be shared: the batch, each rank with a model of its own; the batch, and with it the numbers of every
parameter (FSDP); or a model, each rank with heads of its own."""


@dataclass(frozen=True)
class Mesh:
    """A grid of ranks; those that share a model stand side by side.

    Attributes:
        data: how many models there are, each for a share of the batch.
        shard: how many ranks share the parameters of a model, each with a share of the batch too.
        head: how many ranks share the heads of a model, all with the same share of the batch.
    """

    data: int = 1
    shard: int = 1
    head: int = 1

    @classmethod
    def parse(cls, text: str | None, ranks: int) -> "Mesh":
        """`data=2,head=2` for 4 ranks; without a text all of them share the batch.

        Raises:
            UsageError: something else, numbers whose product is not `ranks`, or both ways to share a model.
        """
        if text is None:
            return cls(data=ranks)
        sizes: dict[str, int] = {}
        for part in text.split(","):
            name, _, size = (piece.strip() for piece in part.partition("="))
            if name not in AXES:
                raise UsageError(f"mesh names {name!r}: {did_you_mean(name, AXES)}")
            if name in sizes or not size.isdecimal() or int(size) < 1:
                raise UsageError(f"mesh = {text!r}: give each of {', '.join(AXES)} once, as in data=2,head=2")
            sizes[name] = int(size)
        mesh = cls(**sizes)
        if mesh.shard > 1 and mesh.head > 1:
            raise UsageError(f"mesh = {text!r} shares a model in two ways: take shard or head, either with data")
        if mesh.size != ranks:
            there_are = f"there are {ranks}" if ranks > 1 else "there is 1"
            raise UsageError(
                f"mesh = {text!r} is for {mesh.size} processes, and {there_are}: "
                f"start {mesh.size}, as with --processes {mesh.size}"
            )
        return mesh

    @property
    def size(self) -> int:
        """How many ranks there are."""
        return math.prod(astuple(self))

    @property
    def batch_shares(self) -> int:
        """Into how many shares a batch is dealt."""
        return self.data * self.shard

    @property
    def shares_model(self) -> bool:
        """Whether ranks have parts of a model, not all of it."""
        return self.shard * self.head > 1

    def groups(self) -> tuple[Ranks, Ranks]:
        """Who has other shares of the batch than this rank, and who its other heads; every rank has to call it."""
        shares, models = make_groups(self.size, self.head)
        return Ranks(shares), Ranks(models)


def make_groups(size: int, together: int) -> tuple[dist.ProcessGroup, dist.ProcessGroup]:
    """Groups of ranks in a grid whose rows have `together` of them; every rank has to call it.

    They wait for each other as long as all ranks together do, where PyTorch would give them half an hour.

    Returns:
        this rank's column, and its row.
    """
    world = dist.group.WORLD
    assert world is not None
    patience = world._get_backend(torch.device("cpu")).options._timeout
    rows = [list(range(first, first + together)) for first in range(0, size, together)]
    columns = [list(range(first, size, together)) for first in range(together)]
    made: dict[tuple[int, ...], Any] = {
        tuple(ranks): dist.new_group(ranks, timeout=patience) for ranks in (*columns, *rows)
    }
    rank = dist.get_rank()
    return tuple(  # pyright: ignore[reportReturnType]
        next(made[tuple(ranks)] for ranks in kind if rank in ranks) for kind in (columns, rows)
    )
