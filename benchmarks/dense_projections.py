"""The dense rows of seed 002 on this machine: one fused matrix against one a head, and head widths of 32, 64 and 72.

The seed says of a GPU that one fused product fills it and one a head does not, that heads of 64 channels fit its
tiles, that those of 32 use them less well, and that those of 72 fall back to slow kernels.

Matrices: the same weights in the views of `smht.layers.views`, D=768 in 12 heads. Queries, keys and values come from
one matrix `[D, 3·D]`, from three `[D, D]`, or from 36 `[D, K]`; the output from one `[D, D]`, or from the sum of 12
products with `[K, D]`. Results are compared before they are timed.

Widths: causal attention with its four projections at D=576, the narrowest that is a whole number of heads of each
width (18, 9 and 8), so that all have the same number of multiplications in dense layers; beside it the split op,
which has fewer the narrower its heads. Time per multiplication, of which the causal half of the pairs counts.

One process, variants in turns, ratios of medians. The limit is the multiplications at the speed of the fastest matrix
product measured here.

    python benchmarks/dense_projections.py [--rounds 15] [--threads 2] [--json]
"""

from collections.abc import Callable, Sequence

import torch
import torch.nn.functional as F
from measure import Seconds, alternate, peak, short_name, timed_dtypes, timing_parser
from reporting import Figure, report
from torch import Tensor

from smht import ops
from smht.layers import MultiHeadAttention
from smht.layers.views import SeparateWeights

BATCH, TOKENS = 4, 512
MATRICES_HIDDEN, MATRICES_HEADS = 768, 12
WIDTHS, WIDTHS_HIDDEN = (32, 64, 72), 576
FUSED_GOAL = ">= 1"
QKV, OUTPUT = "queries, keys, values", "output"
FUSED, SEPARATE = "one matrix", "three matrices"
KINDS = ("forward", "forward+backward")

Call = Callable[[], Sequence[Tensor]]
Variant = tuple[Call, list[Tensor]]
"""Outputs, and the weights to differentiate by."""


def projections(x: Tensor, heads: int) -> dict[str, dict[str, Variant]]:
    """By projection and number of matrices, products of `x` `[B, T, D]` with weights of the same numbers."""
    weights = SeparateWeights.of(MultiHeadAttention(x.shape[-1], heads, split_qkv=False, split_output=False))
    separate = [weights.query, weights.key, weights.value]
    per_head = weights.to_per_head(heads)
    by_head = [w for matrices in (per_head.query, per_head.key, per_head.value) for w in matrices.unbind()]

    def variant(matrices: Sequence[Tensor], call: Callable[[list[Tensor]], Sequence[Tensor]]) -> Variant:
        leaves = [w.detach().to(x.dtype).contiguous().requires_grad_() for w in matrices]
        return (lambda: call(leaves)), leaves

    def products(leaves: list[Tensor]) -> Sequence[Tensor]:
        return [x @ w for w in leaves]

    def summed(leaves: list[Tensor]) -> Sequence[Tensor]:
        first, *others = (chunk @ w for chunk, w in zip(x.chunk(heads, dim=-1), leaves, strict=True))
        for other in others:
            first = first + other
        return [first]

    return {
        QKV: {
            FUSED: variant([weights.to_fused()[0]], products),
            SEPARATE: variant(separate, products),
            "one a head": variant(by_head, products),
        },
        OUTPUT: {
            FUSED: variant([weights.output], products),
            "one a head": variant(per_head.output.unbind(), summed),
        },
    }


def check_equal(variants: dict[str, Variant]) -> None:
    """Refuse to time products that are not the same."""
    first, *others = (torch.cat(list(call()), dim=-1).detach().double() for call, _ in variants.values())
    for other in others:
        if (first - other).norm() > 0.01 * first.norm():
            raise AssertionError(f"{', '.join(variants)} do not give the same")


def time_variants(variants: Sequence[Variant], kind: str, x: Tensor, rounds: int) -> list[Seconds]:
    """Outputs without a graph, or gradients by `x` and the weights."""
    if kind == KINDS[0]:
        with torch.no_grad():
            return alternate([call for call, _ in variants], rounds)
    gradients = [[torch.ones_like(output) for output in call()] for call, _ in variants]

    def backward(variant: Variant, given: list[Tensor]) -> object:
        call, leaves = variant
        return torch.autograd.grad(call(), [x, *leaves], given)

    return alternate(
        [lambda v=variant, g=given: backward(v, g) for variant, given in zip(variants, gradients, strict=True)], rounds
    )


def matrix_figures(dtype: torch.dtype, speed: float, rounds: int, shape: tuple[int, int, int, int]) -> list[Figure]:
    """One matrix against several; `shape` is batch, tokens, heads, hidden size, `speed` multiplications a second."""
    batch, tokens, heads, hidden = shape
    x = torch.randn(batch, tokens, hidden).to(dtype).requires_grad_()
    figures = []
    for projection, variants in projections(x, heads).items():
        check_equal(variants)
        count = batch * tokens * hidden**2 * (3 if projection == QKV else 1)
        for kind in KINDS:
            taken = dict(zip(variants, time_variants(list(variants.values()), kind, x, rounds), strict=True))
            fused = taken.pop(FUSED)
            title = f"{short_name(dtype)} D={hidden} {projection} {kind}, {FUSED}"
            least = (count if kind == KINDS[0] else 3 * count) / speed
            figures += [
                Figure(title, fused.median * 1e3, "ms"),
                Figure(f"{title}, share of the limit", least / fused.shortest),
            ]
            for name, seconds in taken.items():
                goal = None if name == SEPARATE else FUSED_GOAL
                ratio = seconds.median / fused.median
                figures.append(Figure(f"{title} against {name}", ratio, "times as fast", goal))
    return figures


def attention(x: Tensor, width: int, split: bool) -> Variant:
    """Causal attention of `x` `[B, T, D]` with its projections, heads of `width` channels."""
    batch, tokens, hidden = x.shape
    heads = hidden // width
    if split:
        leaves = [(torch.randn(heads, width, width) / width**0.5).to(x.dtype).requires_grad_() for _ in range(4)]
        return (lambda: [ops.split_attention(x, *leaves, is_causal=True)]), leaves
    qkv, out = ((torch.randn(hidden, n * hidden) / hidden**0.5).to(x.dtype).requires_grad_() for n in (3, 1))

    def dense() -> Sequence[Tensor]:
        query, key, value = (x @ qkv).view(batch, tokens, 3, heads, width).permute(2, 0, 3, 1, 4)
        mixed = F.scaled_dot_product_attention(query, key, value, is_causal=True)
        return [mixed.transpose(1, 2).reshape(batch, tokens, hidden) @ out]

    return dense, [qkv, out]


def attention_multiplications(shape: tuple[int, int, int], kind: str, blocks: int) -> float:
    """Of attention on `[B, T, D]`, its projections in `blocks` blocks; backward computes the scores again."""
    batch, tokens, hidden = shape
    projected, pairs = batch * tokens * hidden**2 / blocks, batch * tokens * (tokens + 1) / 2 * hidden
    return 4 * projected + 2 * pairs if kind == KINDS[0] else 12 * projected + 7 * pairs


def width_figures(dtype: torch.dtype, speed: float, rounds: int, shape: tuple[int, int, int]) -> list[Figure]:
    """Heads of several widths; `shape` is batch, tokens, hidden size, `speed` multiplications a second."""
    x = torch.randn(shape).to(dtype).requires_grad_()
    figures = []
    for split in (False, True):
        variants = [attention(x, width, split) for width in WIDTHS]
        for kind in KINDS:
            taken = time_variants(variants, kind, x, rounds)
            for width, seconds in zip(WIDTHS, taken, strict=True):
                count = attention_multiplications(shape, kind, shape[2] // width if split else 1)
                layers = "split" if split else "dense"
                title = f"{short_name(dtype)} D={shape[2]} {layers} attention {kind}, heads of {width}"
                figures += [
                    Figure(title, seconds.median / count * 1e12, "ps a multiplication"),
                    Figure(f"{title}, share of the limit", count / speed / seconds.shortest),
                ]
    return figures


def measure(
    rounds: int, batch: int = BATCH, tokens: int = TOKENS, hidden: tuple[int, int] = (MATRICES_HIDDEN, WIDTHS_HIDDEN)
) -> list[Figure]:
    """All figures; `hidden` are the sizes of the comparison of matrices and of that of widths."""
    torch.manual_seed(0)
    figures = []
    for dtype in timed_dtypes():
        speed = peak(dtype, rounds)
        figures += matrix_figures(dtype, speed, rounds, (batch, tokens, MATRICES_HEADS, hidden[0]))
        figures += width_figures(dtype, speed, rounds, (batch, tokens, hidden[1]))
    return figures


def main() -> None:
    given = timing_parser(__doc__, rounds=15).parse_args()
    torch.set_num_threads(given.threads)
    report(measure(given.rounds), given.json)


if __name__ == "__main__":
    main()
