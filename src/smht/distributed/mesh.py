"""How many ranks share a batch, and how many share a model."""

from dataclasses import dataclass
from typing import Any

import torch.distributed as dist

from smht.distributed.ranks import Ranks
from smht.errors import UsageError, did_you_mean

AXES = ("data", "head")
"""What can be shared: the batch, each rank with a model of its own; or a model, each rank with heads of its own."""


@dataclass(frozen=True)
class Mesh:
    """A grid of ranks; those that share a model stand side by side.

    Attributes:
        data: how many models there are, each for a share of the batch.
        head: how many ranks share a model.
    """

    data: int = 1
    head: int = 1

    @classmethod
    def parse(cls, text: str | None, ranks: int) -> "Mesh":
        """`data=2,head=2` for 4 ranks; without a text all of them share the batch.

        Raises:
            UsageError: something else, or numbers whose product is not `ranks`.
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
        if mesh.data * mesh.head != ranks:
            there_are = f"there are {ranks}" if ranks > 1 else "there is 1"
            raise UsageError(
                f"mesh = {text!r} is for {mesh.data * mesh.head} processes, and {there_are}: "
                f"start {mesh.data * mesh.head}, as with --processes {mesh.data * mesh.head}"
            )
        return mesh

    def groups(self) -> tuple[Ranks, Ranks]:
        """Who shares the batch with this rank, and who its model; every rank has to call it."""
        size, rank = self.data * self.head, dist.get_rank()
        models = [list(range(first, first + self.head)) for first in range(0, size, self.head)]
        shares = [list(range(first, size, self.head)) for first in range(self.head)]
        made: dict[tuple[int, ...], Any] = {tuple(ranks): dist.new_group(ranks) for ranks in (*shares, *models)}
        return tuple(  # pyright: ignore[reportReturnType]
            Ranks(next(made[tuple(ranks)] for ranks in kind if rank in ranks)) for kind in (shares, models)
        )
