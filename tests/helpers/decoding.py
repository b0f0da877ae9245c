"""What the tests of `split_decode` share: random decoders, and whole sequences through them by dense matrices."""

from dataclasses import dataclass, replace
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from helpers.tensors import embed_blocks
from smht.ops import DecoderWeights
from smht.ops.decoder_weights import PROJECTIONS


@dataclass
class Decoding:
    """A decoder, and what it is to decode.

    Attributes:
        weights: of the blocks.
        x: `[B, T, D]`, all tokens; the last one is to be decoded.
        mask: `[B, T]` or None, True at the last token.
        rotation: cosines and sines `[B, T, K/2]`, or None.
    """

    weights: DecoderWeights
    x: Tensor
    mask: Tensor | None
    rotation: tuple[Tensor, Tensor] | None

    @property
    def past(self) -> int:
        return self.x.shape[1] - 1

    def to(self, dtype: torch.dtype) -> "Decoding":
        """The same in another dtype."""
        numbers = {
            name: [tensor.to(dtype) for tensor in getattr(self.weights, name)]
            for name in ("projections", "norm_weights", "norm_biases", "biases")
        }
        return replace(self, weights=replace(self.weights, **numbers), x=self.x.to(dtype))

    def arguments(self) -> dict[str, Any]:
        """What the op is given besides x, weights and caches."""
        last = None if self.rotation is None else tuple(angles[:, -1] for angles in self.rotation)
        return {"past": self.past, "mask": self.mask, "rotation": last}


def random_decoding(
    *,
    blocks: int = 2,
    batch: int = 2,
    heads: int = 3,
    width: int = 4,
    hidden: int = 5,
    past: int = 6,
    seed: int = 0,
    biases: bool = False,
    shuffled: bool = False,
    masked: bool = False,
    rotated: bool = False,
    **fields: Any,
) -> Decoding:
    """In float64. Orders are arbitrary permutations, masks have holes anywhere but at the last token."""
    torch.manual_seed(seed)
    size, tokens = heads * width, past + 1

    def random(*shape: int, scale: float = 1.0) -> Tensor:
        return torch.randn(shape, dtype=torch.float64) * scale

    shapes = {"up": (width, hidden), "down": (hidden, width)}
    projections, added = [], []
    for _ in range(blocks):
        for name in PROJECTIONS:
            in_width, out_width = shapes.get(name, (width, width))
            projections.append(random(heads, in_width, out_width, scale=in_width**-0.5))
            added.append(random(heads * out_width))
    norms = 2 * blocks + (not fields.get("norm_after", False))
    weights = DecoderWeights(
        projections=projections,
        norm_weights=[1 + random(size, scale=0.3) for _ in range(norms)],
        norm_biases=[random(size, scale=0.3) for _ in range(norms)],
        biases=added if biases else [],
        orders=[torch.randperm(size) for _ in range(blocks)] if shuffled else [],
        **fields,
    )
    mask = torch.rand(batch, tokens) < 0.6
    mask[:, -1] = True
    angles = random(batch, tokens, width // 2)
    return Decoding(
        weights,
        random(batch, tokens, size),
        mask if masked else None,
        (angles.cos(), angles.sin()) if rotated else None,
    )


def whole_sequences(decoding: Decoding) -> tuple[Tensor, list[Tensor], list[Tensor]]:
    """All tokens through dense matrices: outputs `[B, T, D]`, and each block's keys and values `[B, H, T, K]`."""
    weights, x, all_keys, all_values = decoding.weights, decoding.x, [], []
    tokens, heads = x.shape[1], weights.num_heads
    allowed = torch.ones(tokens, tokens, dtype=torch.bool).tril()
    if decoding.mask is not None:
        # A token that nobody may see still sees itself.
        allowed = (allowed & decoding.mask[:, None]) | torch.eye(tokens, dtype=torch.bool)
        allowed = allowed[:, None]

    def norm(x: Tensor, place: int, order: Tensor) -> Tensor:
        scale, shift = weights.norm_weights[place], weights.norm_biases[place]
        if not weights.norm_per_head:
            return F.layer_norm(x, x.shape[-1:], scale, shift, weights.eps)
        chunks = [
            F.layer_norm(x[..., channels], channels.shape, scale[channels], shift[channels], weights.eps)
            for channels in order.chunk(heads)
        ]
        return torch.cat(chunks, -1)[..., order.argsort()]

    for block in range(weights.num_blocks):
        order = weights.orders[block] if weights.orders else torch.arange(x.shape[-1])

        def project(x: Tensor, name: str, block: int = block) -> Tensor:
            place = 6 * block + PROJECTIONS.index(name)
            bias = weights.biases[place] if weights.biases else None
            return F.linear(x, embed_blocks(weights.projections[place]).T, bias)

        def attend(x: Tensor) -> Tensor:
            query, key, value = (project(x, name).unflatten(-1, (heads, -1)).transpose(1, 2) for name in "qkv")
            if decoding.rotation is not None:
                turn = torch.complex(*decoding.rotation)[:, None]
                query, key = (
                    torch.cat([turned.real, turned.imag], -1)
                    for turned in (torch.complex(*rows.chunk(2, -1)) * turn for rows in (query, key))
                )
            all_keys.append(key)
            all_values.append(value)
            mixed = F.scaled_dot_product_attention(query, key, value, attn_mask=allowed)
            return project(mixed.transpose(1, 2).flatten(-2), "o")

        def feed_forward(x: Tensor) -> Tensor:
            activations = {
                "relu_squared": lambda x: F.relu(x) ** 2,
                "gelu_tanh": lambda x: F.gelu(x, approximate="tanh"),
            }
            activation = activations.get(weights.activation) or getattr(F, weights.activation)
            return project(activation(project(x, "up")), "down")

        for number, sublayer in enumerate((attend, feed_forward)):
            read = x if weights.norm_after else norm(x, 2 * block + number, order)
            x = x + sublayer(read[..., order])[..., order.argsort()]
            x = norm(x, 2 * block + number, order) if weights.norm_after else x
    return x if weights.norm_after else norm(x, -1, torch.arange(x.shape[-1])), all_keys, all_values


def caches(rows: list[Tensor], past: int, room: int = 2) -> list[Tensor]:
    """Keys or values of the first `past` tokens, NaN where the new token and `room` later ones belong."""
    filled = [F.pad(row[:, :, :past], (0, 0, 0, 1 + room), value=torch.nan) for row in rows]
    return [cache.clone() for cache in filled]
