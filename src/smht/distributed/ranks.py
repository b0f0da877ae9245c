"""The processes that share a model, and what they say to each other.

Everything in this package goes through torch.distributed: gloo on CPUs, NCCL on GPUs.
"""

from collections.abc import Sequence
from typing import Any, Self

import torch
import torch.distributed as dist
from torch import Tensor

# PyTorch 2.13 has other names for them.
_all_gather: Any = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor
_reduce_scatter: Any = getattr(dist, "reduce_scatter_single", None) or dist.reduce_scatter_tensor


class Ranks:
    """A process group as the parts of a model see it. A copy of a model speaks through the same group.

    Args:
        group: the processes; all of them if not given.

    Attributes:
        size: `P`, how many there are.
        rank: which of them this one is, `0..P-1`.
    """

    def __init__(self, group: dist.ProcessGroup | None = None) -> None:
        chosen = group or dist.group.WORLD
        assert chosen is not None, "call torch.distributed.init_process_group first"
        self.group: dist.ProcessGroup = chosen
        self.size, self.rank = dist.get_world_size(chosen), dist.get_rank(chosen)

    def __deepcopy__(self, memo: dict[int, Any]) -> Self:
        return self

    def part(self, size: int, rank: int | None = None) -> slice:
        """Which of `size` things a rank holds: ⌈size / P⌉ of them, the last ranks fewer where that leaves a rest."""
        each = -(-size // self.size)
        start = min(each * (self.rank if rank is None else rank), size)
        return slice(start, min(start + each, size))

    def collect(self, x: Tensor) -> Tensor:
        """`[...]` of every rank as `[P, ...]`; no gradient."""
        collected = x.new_empty(self.size, *x.shape)
        _all_gather(collected.view(-1), x.contiguous().view(-1), group=self.group)
        return collected

    def start_sum(self, x: Tensor) -> dist.Work:
        """Begin to replace `x` by its sum over the ranks; no gradient. `wait()` on the result before reading `x`."""
        work = dist.all_reduce(x, group=self.group, async_op=True)
        assert work is not None
        return work

    def join_channels(self, x: Tensor) -> Tensor:
        """Each rank's channels `[N, D/P]` side by side, `[N, D]`, for ranks that each do something else with them.

        The gradient of a channel is then the sum of what the ranks found.
        """
        return _JoinChannels.apply(x, self)

    def join_copies(self, x: Tensor) -> Tensor:
        """Each rank's part `[N, V/P]` side by side, `[N, V]`, for ranks that all go on to do the same with them.

        Each has the whole gradient then, and takes what concerns its part.
        """
        return _JoinCopies.apply(x, self)

    def sum_and_cut(self, x: Tensor) -> Tensor:
        """The sum of `[N, V]` over the ranks, of which each gets `[N, V/P]`."""
        return _SumAndCut.apply(x, self)

    def exchange(self, x: Tensor, sent: Sequence[int], received: Sequence[int]) -> Tensor:
        """Rows of `[R, ...]` dealt to the ranks: `sent[r]` to rank `r`, in order; `received[r]` come from it."""
        return _Exchange.apply(x, list(sent), list(received), self)

    def _join(self, x: Tensor) -> Tensor:
        return self.collect(x).movedim(0, 1).flatten(1)

    def _sum_and_cut(self, x: Tensor) -> Tensor:
        parts = x.unflatten(1, (self.size, -1)).movedim(1, 0).contiguous()
        summed = torch.empty_like(parts[0])
        _reduce_scatter(summed.view(-1), parts.view(-1), group=self.group)
        return summed

    def _exchange(self, x: Tensor, sent: list[int], received: list[int]) -> Tensor:
        arrived = x.new_empty(sum(received), *x.shape[1:])
        dist.all_to_all_single(arrived, x.contiguous(), received, sent, group=self.group)
        return arrived


class _JoinChannels(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, ranks: Ranks) -> Tensor:
        ctx.ranks = ranks
        return ranks._join(x)

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> tuple[Tensor, None]:
        return ctx.ranks._sum_and_cut(gradients[0]), None


class _JoinCopies(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, ranks: Ranks) -> Tensor:
        ctx.ranks, ctx.width = ranks, x.shape[1]
        return ranks._join(x)

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> tuple[Tensor, None]:
        start = ctx.ranks.rank * ctx.width
        return gradients[0][:, start : start + ctx.width], None


class _SumAndCut(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, ranks: Ranks) -> Tensor:
        ctx.ranks = ranks
        return ranks._sum_and_cut(x)

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> tuple[Tensor, None]:
        return ctx.ranks._join(gradients[0]), None


class _Exchange(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, sent: list[int], received: list[int], ranks: Ranks) -> Tensor:
        ctx.sent, ctx.received, ctx.ranks = sent, received, ranks
        return ranks._exchange(x, sent, received)

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> tuple[Tensor, None, None, None]:
        return ctx.ranks._exchange(gradients[0], ctx.received, ctx.sent), None, None, None
