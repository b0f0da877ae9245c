"""The contract of `split_decode`: one new token of each sequence through all blocks of a decoder."""

import math

import torch
from torch import Tensor

from smht.errors import UsageError
from smht.ops.backend import run
from smht.ops.decoder_weights import DecoderWeights


def split_decode(
    x: Tensor,
    weights: DecoderWeights,
    keys: list[Tensor],
    values: list[Tensor],
    past: int,
    *,
    mask: Tensor | None = None,
    rotation: tuple[Tensor, Tensor] | None = None,
    scale: float | None = None,
) -> Tensor:
    """One token of each sequence through all blocks, and through the norm after them where there is one.

    What a decoder of split blocks computes for its newest token (seed 000, steps 3 and 4), with the cached keys and
    values of those before. Takes no gradients.

    Args:
        x: `[B, D]`, the embedded tokens.
        weights: of the blocks.
        keys: of each block `[B, H, S, K]` with `S > past`; the new ones are written in place `past`, and what lies
            beyond is not read. Each number has a place of its own in memory, and the K of a token lie side by side.
        values: like `keys`.
        past: how many tokens are cached.
        mask: `[B, S]` with `S > past`, boolean, True where a token may be attended to. A sequence that may attend to
            none gets zeros from attention.
        rotation: cosines and sines of the tokens' positions, `[B, K/2]` or `[1, K/2]` each, to turn queries and keys.
        scale: factor of the scores; `1/√K` if not given.

    Returns:
        `[B, D]`.

    Raises:
        UsageError: shapes that do not fit, a cache without place for another token, or tensors that want gradients.
    """
    check_decode(x, weights, keys, values, past, mask, rotation)
    factor = 1 / math.sqrt(weights.head_dim) if scale is None else scale
    return run("split_decode", x, weights, keys, values, past, mask, rotation, factor)


def check_decode(
    x: Tensor,
    weights: DecoderWeights,
    keys: list[Tensor],
    values: list[Tensor],
    past: int,
    mask: Tensor | None,
    rotation: tuple[Tensor, Tensor] | None,
) -> None:
    """Raise what `split_decode` raises."""
    batch = x.shape[0] if x.dim() == 2 else -1
    if x.dim() != 2 or x.shape[1] != weights.hidden_size:
        raise UsageError(f"split_decode: x must be [B, D] with D = {weights.hidden_size}, got {list(x.shape)}")
    for name, cache in (("keys", keys), ("values", values)):
        if len(cache) != weights.num_blocks:
            raise UsageError(f"split_decode: {name} must be one tensor a block, {weights.num_blocks}; got {len(cache)}")
        # Mostly there is one shape, and looking at all of them one by one would take as long as computing a block.
        for shape in {block.shape for block in cache}:
            _check_cache(name, shape, (batch, weights.num_heads, weights.head_dim), past)
    if mask is not None and (
        mask.dtype != torch.bool or mask.dim() != 2 or mask.shape[0] != batch or mask.shape[1] <= past
    ):
        raise UsageError(
            f"split_decode: mask must be boolean, [B, S] with B = {batch} and S > {past}; "
            f"got {list(mask.shape)}, {str(mask.dtype).removeprefix('torch.')}"
        )
    if rotation is not None:
        _check_rotation(rotation, batch, weights.head_dim)
    if torch.is_grad_enabled() and any(tensor.requires_grad for tensor in (x, *weights.numbers)):
        raise UsageError("split_decode takes no gradients: call it under torch.no_grad() or torch.inference_mode()")


def _check_cache(name: str, shape: torch.Size, sizes: tuple[int, int, int], past: int) -> None:
    batch, heads, width = sizes
    if len(shape) != 4 or (shape[0], shape[1], shape[3]) != sizes:
        raise UsageError(
            f"split_decode: {name} must be [B, H, S, K] = [{batch}, {heads}, S, {width}], got {list(shape)}"
        )
    if not 0 <= past < shape[2]:
        raise UsageError(f"split_decode: {name} of {shape[2]} tokens have no place for token {past}")


def _check_rotation(rotation: tuple[Tensor, Tensor], batch: int, width: int) -> None:
    for angles in rotation:
        if width % 2 or list(angles.shape) not in ([batch, width // 2], [1, width // 2]):
            raise UsageError(
                f"split_decode: cosines and sines must be [B, K/2] or [1, K/2] with B = {batch} and K = {width}; "
                f"got {list(angles.shape)}"
            )
