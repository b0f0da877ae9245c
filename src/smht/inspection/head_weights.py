"""Projections in which some heads compute with other heads' weights."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from smht import ops
from smht.inspection.head_edits import Place
from smht.layers import SplitLinear
from smht.layers.block import Block

_PROJECTIONS = {
    "attention": ("self_attn", ("q_proj", "k_proj", "v_proj", "o_proj")),
    "cross_attention": ("cross_attn", ("q_proj", "k_proj", "v_proj", "o_proj")),
    "feed_forward": ("mlp", ("up_proj", "down_proj")),
}


def swapped_forward(
    blocks: Mapping[str, Sequence[Block]], sources: Mapping[Place, Place]
) -> Iterator[tuple[nn.Module, Callable[[Tensor], Tensor]]]:
    """Each projection with a head that takes another's weights, and what computes its output with them.

    Args:
        blocks: of each stack.
        sources: of each such head, the one whose weights it takes.
    """
    by_site: dict[tuple[str, int, str], list[Place]] = {}
    for place in sources:
        by_site.setdefault((place.stack, place.layer, place.part), []).append(place)
    for places in by_site.values():
        for name in _PROJECTIONS[places[0].part][1]:
            taken = [(place.head, _projection(blocks, sources[place], name), sources[place].head) for place in places]
            projection = _projection(blocks, places[0], name)
            yield projection, _with_weights_of(projection, name, taken, _heads_of(blocks, places[0]))


def _projection(blocks: Mapping[str, Sequence[Block]], place: Place, name: str) -> Any:
    block: Any = blocks[place.stack][place.layer]
    return getattr(getattr(block, _PROJECTIONS[place.part][0]), name)


def _heads_of(blocks: Mapping[str, Sequence[Block]], place: Place) -> int:
    return blocks[place.stack][place.layer].self_attn.num_heads


@torch.no_grad()
def _with_weights_of(
    projection: Any, name: str, taken: list[tuple[int, Any, int]], heads: int
) -> Callable[[Tensor], Tensor]:
    """The projection's function with some heads' weights from elsewhere: a head, whose projection, which head there."""
    weight = projection.weight.clone()
    bias = None if projection.bias is None else projection.bias.clone()
    for head, other, other_head in taken:
        _part(weight, projection, name, head, heads).copy_(_part(other.weight, other, name, other_head, heads))
        if bias is not None and _has_own_bias(projection, name):
            bias.chunk(heads)[head].copy_(other.bias.chunk(heads)[other_head])
    if isinstance(projection, SplitLinear):
        return lambda x: ops.split_linear(x, weight, bias)
    return lambda x: F.linear(x, weight, bias)


def _part(weight: Tensor, projection: nn.Module, name: str, head: int, heads: int) -> Tensor:
    """A head's own part of a projection's weight, as a view: its matrix, or rows or columns of a dense one."""
    if isinstance(projection, SplitLinear):
        return weight[head]
    return weight.chunk(heads, dim=1 if name == "o_proj" else 0)[head]


def _has_own_bias(projection: nn.Module, name: str) -> bool:
    """Whether a part of the bias belongs to a head: not that of a dense output projection."""
    return isinstance(projection, SplitLinear) or name != "o_proj"
