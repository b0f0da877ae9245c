"""The whole block: split with kernels, split by the plain PyTorch reference, and dense, in float32 and bf16 autocast.

The dense block is written here with torch's own modules: one fused projection for queries, keys and values, PyTorch's
attention, two linear layers around a GELU. Beside it stand smht's dense block, and split blocks whose channels are
shuffled or whose queries and keys are turned by their positions. One process, variants in turns, ratios of medians.

The limit is the larger of two times. One is what has to be computed: multiplications at the speed of the fastest
matrix product measured here, plus the instructions of softmax and GELU, each at the speed of a multiplication in
float32, in which the kernels compute them, plus PyTorch's LayerNorm and sums on tensors of this size.
The other is what has to be moved: each input, output, weight and gradient once, at the speed of a large copy.

    python benchmarks/block.py [--rounds 15] [--threads 2] [--json]
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import torch
from dense_block import DenseBlock
from measure import Seconds, alternate, copy_bandwidth, peak, short_name, timed_dtypes, timing_parser, with_gradients
from reporting import Figure, report
from torch import Tensor, nn

from smht import ops
from smht.layers import Block
from smht.layers.position import RotaryPositions

KINDS = ("forward", "forward+backward")
FORWARD, BOTH = KINDS
_FEWEST_PROJECTIONS = 10
"""Of 12: two products of a head's weights, made once a call, take the place of its four in attention."""
DENSE_GOALS = {
    (torch.float32, 768, FORWARD): ">= 5",
    (torch.float32, 768, BOTH): ">= 5",
    (torch.float32, 256, BOTH): ">= 3.5",
    (torch.bfloat16, 768, FORWARD): ">= 3.5",
    (torch.bfloat16, 768, BOTH): ">= 3.5",
    (torch.bfloat16, 256, BOTH): ">= 2.5",
}
"""How many times as fast as dense, by dtype, hidden size and kind."""
REFERENCE_GOAL, LIMIT_GOAL = ">= 1.6", ">= 0.9"
SOFTMAX_OPERATIONS = {FORWARD: 13, BOTH: 26}
GELU_OPERATIONS = {FORWARD: 18, BOTH: 45}
"""Vector instructions a number, in the kernels' formulas: ten of an exponential, eighteen of two polynomials and their
quotient. Backward has the exponential of softmax again, and GELU's value and slope."""

Call = Callable[[Tensor], Tensor]


@dataclass(frozen=True)
class Shape:
    """Sizes of a block and its input; the feed-forward is four times as wide as the block."""

    batch: int
    tokens: int
    heads: int
    hidden: int

    @property
    def rows(self) -> int:
        """Tokens of all sequences."""
        return self.batch * self.tokens

    @property
    def pairs(self) -> float:
        """Pairs of tokens that attend, in all heads."""
        return self.rows * self.heads * (self.tokens + 1) / 2

    def multiplications(self, kind: str, heads: int, projections: int = 12) -> float:
        """Of a block with `heads` blocks on its diagonals, 1 for the dense one, and so many projections of that size.

        Backward has twice the products of projections, and five of pairs for two, since scores are computed again.
        """
        projected, pairs = projections * self.rows * self.hidden**2 / heads, self.pairs * self.hidden / self.heads
        return projected + 2 * pairs if kind == FORWARD else 3 * projected + 7 * pairs

    def bytes(self, kind: str) -> float:
        """Input, output and weights of the split block; backward their gradients, and input and weights again."""
        stream, weights = self.rows * self.hidden, 12 * self.hidden**2 / self.heads
        return 4 * (2 * stream + weights) if kind == FORWARD else 4 * (5 * stream + 3 * weights)


SHAPES = (Shape(4, 512, 12, 768), Shape(8, 256, 8, 256))


@dataclass(frozen=True)
class Variant:
    """A block, how it is called, and the backend that its ops run on."""

    module: nn.Module
    call: Call
    backend: str = "reference"


def variants(shape: Shape) -> dict[str, Variant]:
    """All blocks by name."""
    sizes = shape.hidden, shape.heads, 4 * shape.hidden
    split, shuffled = Block(*sizes), Block(*sizes, shuffle=True, layer_idx=1)
    rotation = RotaryPositions(shape.tokens, shape.hidden // shape.heads).rotation(torch.arange(shape.tokens)[None])

    def turned(x: Tensor) -> Tensor:
        return split(x, rotation=rotation)

    dense, own_dense = DenseBlock(shape.hidden, shape.heads), Block(*sizes, split=())
    table = {"dense": Variant(dense, dense), "smht's dense block": Variant(own_dense, own_dense)}
    for name, module, call in (("split", split, split), ("shuffled", shuffled, shuffled), ("rotary", split, turned)):
        table[f"{name}, kernels"] = Variant(module, call, "cpu")
        table[f"{name}, reference"] = Variant(module, call, "reference")
    return table


def time_variants(
    table: dict[str, Variant], kind: str, dtype: torch.dtype, x: Tensor, rounds: int
) -> dict[str, Seconds]:
    """How long each takes on `x` `[B, T, D]`; other dtypes than float32 by autocast."""
    gradient = torch.ones_like(x)

    def autocast_call(variant: Variant, x: Tensor) -> Tensor:
        with torch.autocast("cpu", dtype, enabled=dtype != torch.float32):
            return variant.call(x)

    def run(variant: Variant) -> object:
        ops.set_backend(variant.backend)
        if kind == FORWARD:
            with torch.no_grad():
                return autocast_call(variant, x)
        weights = list(variant.module.parameters())
        return with_gradients(lambda x: autocast_call(variant, x), x, weights, gradient)

    taken = alternate([lambda variant=variant: run(variant) for variant in table.values()], rounds)
    return dict(zip(table, taken, strict=True))


def seconds_of_norms_and_sums(shape: Shape, kind: str, rounds: int) -> float:
    """Of both norms and residual sums of a block, which are PyTorch's in the split block, too."""
    stream, weight = torch.randn(shape.rows, shape.hidden), torch.ones(shape.hidden)
    total = torch.empty_like(stream)
    # Only what has a gradient of its own; the arguments of torch's own functions are positional.
    normalised, mean, deviation = torch.native_layer_norm(stream, [shape.hidden], weight, weight, 1e-5)
    parts = [
        lambda: torch.native_layer_norm(stream, [shape.hidden], weight, weight, 1e-5),
        lambda: torch.ops.aten.native_layer_norm_backward(
            normalised, stream, [shape.hidden], mean, deviation, weight, weight, [True] * 3
        ),
        lambda: torch.add(stream, normalised, out=total),
    ]
    norm, norm_back, add = (each.shortest for each in alternate(parts, 4 * rounds))
    return 2 * (norm + add) if kind == FORWARD else 2 * (norm + norm_back) + 4 * add


class Machine(NamedTuple):
    """Multiplications a second, in the products' dtype and in float32, and bytes copied."""

    products: float
    instructions: float
    bandwidth: float


def limit(shape: Shape, kind: str, machine: Machine, rounds: int) -> float:
    """Seconds that the split block takes at least; see the top of this file."""
    elements = shape.pairs * SOFTMAX_OPERATIONS[kind] + 4 * shape.rows * shape.hidden * GELU_OPERATIONS[kind]
    computed = (
        shape.multiplications(kind, shape.heads, _FEWEST_PROJECTIONS) / machine.products
        + elements / machine.instructions
        + seconds_of_norms_and_sums(shape, kind, rounds)
    )
    return max(computed, shape.bytes(kind) / machine.bandwidth)


def figures_of(
    title: str, shape: Shape, kind: str, dtype: torch.dtype, taken: dict[str, Seconds], least: float
) -> list[Figure]:
    """Of one shape, dtype and kind; `least` is the limit in seconds."""
    kernels = taken["split, kernels"]
    saved = shape.multiplications(kind, 1) / shape.multiplications(kind, shape.heads)
    has_backward = kind == BOTH

    def ratio(name: str, slow: str, fast: str, goal: str | None = None) -> Figure:
        return Figure(f"{title}, {name}", taken[slow].median / taken[fast].median, "times as fast", goal)

    return [
        Figure(f"{title}, kernels", kernels.median * 1e3, "ms"),
        ratio("against the reference", "split, reference", "split, kernels", REFERENCE_GOAL if has_backward else None),
        ratio("against dense", "dense", "split, kernels", DENSE_GOALS.get((dtype, shape.hidden, kind))),
        Figure(f"{title}, multiplications of dense", saved, "times as many"),
        Figure(f"{title}, limit", least * 1e3, "ms"),
        Figure(f"{title}, against dense at the limit", taken["dense"].shortest / least, "times as fast"),
        Figure(f"{title}, share of the limit", least / kernels.shortest, "", LIMIT_GOAL if has_backward else None),
        ratio("smht's dense block against dense", "dense", "smht's dense block"),
        ratio("shuffled against its reference", "shuffled, reference", "shuffled, kernels"),
        ratio("shuffled against dense", "dense", "shuffled, kernels"),
        ratio("rotary against its reference", "rotary, reference", "rotary, kernels"),
        ratio("rotary against dense", "dense", "rotary, kernels"),
    ]


def measure(shape: Shape, dtype: torch.dtype, rounds: int) -> list[Figure]:
    """All figures of one shape and dtype."""
    torch.manual_seed(0)
    table = variants(shape)
    x = torch.randn(shape.batch, shape.tokens, shape.hidden, requires_grad=True)
    products = peak(dtype, rounds)
    instructions = products if dtype == torch.float32 else peak(torch.float32, rounds)
    machine = Machine(products, instructions, copy_bandwidth(rounds))
    figures = []
    for kind in KINDS:
        taken = time_variants(table, kind, dtype, x, rounds)
        title = f"{short_name(dtype)} D={shape.hidden} {kind}"
        figures += figures_of(title, shape, kind, dtype, taken, limit(shape, kind, machine, rounds))
    return figures


def main() -> None:
    given = timing_parser(__doc__, rounds=15).parse_args()
    torch.set_num_threads(given.threads)
    dtypes = timed_dtypes()
    report(
        [figure for dtype in dtypes for shape in SHAPES for figure in measure(shape, dtype, given.rounds)], given.json
    )


if __name__ == "__main__":
    main()
