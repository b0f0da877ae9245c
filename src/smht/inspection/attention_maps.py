"""Who attends to whom: the weights of every head, and numbers that tell heads apart (seeds 002 and 004).

Shapes: `N` layers, `H` heads, `T` queries, `S` keys. All is about one text.
"""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from smht.errors import UsageError
from smht.inspection.attention_figures import can_draw, draw_grid, picture
from smht.inspection.display import Displayed, Table
from smht.inspection.recording import evaluating, recording
from smht.models import SmhtPreTrainedModel

KINDS = ("self", "encoder", "cross")
"""Attention of a single stack or of the decoder; of the encoder; from decoder to encoder."""
_PAIRS = {ord(")"): ord("("), ord("]"): ord("["), ord("}"): ord("{")}


@dataclass(frozen=True, repr=False)
class AttentionMaps(Displayed):
    """Weights of one text.

    Attributes:
        maps: `[N, H, T, S]` by kind; those of `KINDS` that the model has. Rows sum to 1.
    """

    maps: dict[str, Tensor]

    def tables(self) -> list[Table]:
        """What there is to look at: a row a kind."""
        rows = tuple((kind, *(f"{size:,}" for size in weights.shape)) for kind, weights in self.maps.items())
        return [Table(("attention", "layers", "heads", "queries", "keys"), rows)]

    def _repr_html_(self) -> str:
        pictures = [
            picture(draw_grid(weights, f"{kind} attention"), f"{kind} attention of every layer and head")
            for kind, weights in self.maps.items()
            if can_draw()
        ]
        return super()._repr_html_() + "".join(pictures)

    def of(self, kind: str = "self", layer: int | None = None, head: int | None = None) -> Tensor:
        """`[N, H, T, S]`, or without the axes that are chosen.

        Raises:
            UsageError: there is no such kind, layer or head; the message says what there is.
        """
        if kind not in self.maps:
            raise UsageError(f"this model has no {kind!r} attention, only {' and '.join(map(repr, self.maps))}")
        chosen = self.maps[kind]
        for name, number, size in (("layer", layer, chosen.shape[0]), ("head", head, chosen.shape[1])):
            if number is not None and not 0 <= number < size:
                raise UsageError(f"there is no {name} {number}: they are 0 to {size - 1}")
        if head is not None:
            chosen = chosen[:, head]
        return chosen if layer is None else chosen[layer]


@torch.no_grad()
def attention_maps(model: SmhtPreTrainedModel, **inputs: Any) -> AttentionMaps:
    """Run `model` on one text and keep all attention weights.

    Args:
        model: any of smht's; put into evaluation mode for the time.
        **inputs: what its forward takes, one text.

    Raises:
        UsageError: what the model refuses.
    """
    with evaluating(model), recording(model) as record:
        model(**inputs)
    found: dict[str, list[Tensor]] = {}
    for name, call in record.items():
        if call.weights is not None and name.endswith(("self_attn", "cross_attn")):
            kind = "cross" if name.endswith("cross_attn") else "encoder" if "encoder." in name else "self"
            found.setdefault(kind, []).append(call.weights[0])
    return AttentionMaps({kind: torch.stack(found[kind]) for kind in KINDS if kind in found})


@dataclass(frozen=True)
class HeadStatistics:
    """What a head does, in numbers, each a mean over queries.

    Attributes:
        layer: its block.
        head: its number.
        entropy: of its rows, in bits; 0 where it looks at one token.
        distance: how many tokens away it looks.
        previous: weight on the token before.
        first: weight on the first token.
        bracket: weight of a closing bracket on its opening one; None where the text has no pair.
    """

    layer: int
    head: int
    entropy: float
    distance: float
    previous: float
    first: float
    bracket: float | None


def head_statistics(weights: Tensor, partners: dict[int, int] | None = None) -> list[HeadStatistics]:
    """Statistics of every head.

    Args:
        weights: `[N, H, T, T]`, of `AttentionMaps.of`.
        partners: query position to key position of matching brackets (`matching_brackets`).

    Raises:
        UsageError: attention to another text, which has no distances.
    """
    layers, heads, queries, keys = weights.shape
    if queries != keys:
        raise UsageError(f"statistics are of attention within a text; got {queries} queries and {keys} keys")
    weights = weights.double()
    places = torch.arange(keys)
    entropy = -torch.special.xlogy(weights, weights).sum(-1).mean(-1) / torch.log(torch.tensor(2.0))
    distance = (weights * (places[:, None] - places[None, :]).abs()).sum(-1).mean(-1)
    before = weights.diagonal(-1, dim1=-2, dim2=-1)
    previous = before.mean(-1) if queries > 1 else torch.zeros(layers, heads)
    first = weights[..., 0].mean(-1)
    bracket = None
    if partners:
        rows, columns = torch.tensor(list(partners)), torch.tensor(list(partners.values()))
        bracket = weights[..., rows, columns].mean(-1)
    return [
        HeadStatistics(
            layer,
            head,
            float(entropy[layer, head]),
            float(distance[layer, head]),
            float(previous[layer, head]),
            float(first[layer, head]),
            None if bracket is None else float(bracket[layer, head]),
        )
        for layer in range(layers)
        for head in range(heads)
    ]


def matching_brackets(pieces: list[bytes]) -> dict[int, int]:
    """Positions of tokens that end with a closing bracket, to those of the tokens with its opening one.

    Brackets that do not match are left out, as are pairs within one token.

    Args:
        pieces: the bytes of each token; empty for special ones.
    """
    open_places: list[tuple[int, int]] = []
    partners: dict[int, int] = {}
    for position, piece in enumerate(pieces):
        for byte in piece:
            if byte in _PAIRS.values():
                open_places.append((byte, position))
            elif byte in _PAIRS and open_places and open_places[-1][0] == _PAIRS[byte]:
                _, start = open_places.pop()
                if start != position:
                    partners[position] = start
    return partners
