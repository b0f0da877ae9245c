"""The contracts of the split ops: what goes in, what comes out, what is refused.

A contract checks shapes, then calls the backend in use. Results are those of
`smht.ops.reference` up to rounding, for every backend.
"""

import math

from torch import Tensor

from smht.errors import UsageError, did_you_mean
from smht.ops.activation import ACTIVATIONS
from smht.ops.backend import run


def split_linear(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """Block-diagonal linear map: head `h` reads chunk `h` and writes chunk `h` (seed 000, section 2).

    `y[..., h, :] = x[..., h, :] · weight[h] + bias[h]`, with `x` seen as `[..., H, I]`.

    Args:
        x: `[..., H·I]`.
        weight: `[H, I, O]`, one matrix a head.
        bias: `[H·O]`.

    Returns:
        `[..., H·O]`.

    Raises:
        UsageError: shapes that do not fit; the message names them.
    """
    _check_projection("split_linear", "weight", x, weight)
    _check_bias("split_linear", "bias", bias, weight)
    return run("split_linear", x, weight, bias)


def split_feed_forward(
    x: Tensor,
    up_weight: Tensor,
    down_weight: Tensor,
    activation: str = "gelu",
    up_bias: Tensor | None = None,
    down_bias: Tensor | None = None,
) -> Tensor:
    """Feed-forward sub-layer, head by head: `z_h = act(x_h · W1[h]) · W2[h]` (seed 000, step 3k).

    Args:
        x: `[..., D]`.
        up_weight: `W1`, `[H, K, G]`.
        down_weight: `W2`, `[H, G, K]`.
        activation: a name in `smht.ops.activation.ACTIVATIONS`.
        up_bias: `[H·G]`.
        down_bias: `[D]`.

    Returns:
        `[..., D]`.

    Raises:
        UsageError: shapes that do not fit, or an unknown activation.
    """
    if activation not in ACTIVATIONS:
        raise UsageError(f"no activation is called {activation!r}: {did_you_mean(activation, ACTIVATIONS)}")
    _check_projection("split_feed_forward", "up_weight", x, up_weight)
    num_heads, head_dim, head_width = up_weight.shape
    if down_weight.shape != (num_heads, head_width, head_dim):
        raise UsageError(
            f"split_feed_forward: down_weight must be {[num_heads, head_width, head_dim]}, "
            f"up_weight {list(up_weight.shape)} the other way round; got {list(down_weight.shape)}"
        )
    _check_bias("split_feed_forward", "up_bias", up_bias, up_weight)
    _check_bias("split_feed_forward", "down_bias", down_bias, down_weight)
    return run("split_feed_forward", x, up_weight, down_weight, activation, up_bias, down_bias)


def split_attention(
    x: Tensor,
    q_weight: Tensor,
    k_weight: Tensor,
    v_weight: Tensor,
    o_weight: Tensor,
    *,
    is_causal: bool = False,
    mask: Tensor | None = None,
    dropout: float = 0.0,
    scale: float | None = None,
    rotation: tuple[Tensor, Tensor] | None = None,
) -> Tensor:
    """Self-attention sub-layer, head by head (seed 000, steps 3b to 3g).

    `y_h = softmax(q_h · k_hᵀ · scale) · v_h · W_O[h]` with `q_h = x_h · W_Q[h]`, likewise `k_h` and `v_h`; with a
    rotation, queries and keys are turned by their positions in between (`smht.ops.rotation.rotate`).

    Args:
        x: `[B, T, D]`.
        q_weight: `[H, K, K]`, like `k_weight`, `v_weight` and `o_weight`.
        k_weight: `[H, K, K]`.
        v_weight: `[H, K, K]`.
        o_weight: `[H, K, K]`.
        is_causal: token `t` attends to tokens `0..t`. Not together with `mask`.
        mask: boolean, True where attention is allowed, or a float added to the scores;
            broadcastable to `[B, H, T, T]`.
        dropout: probability that an attention weight is dropped, drawn from PyTorch's default
            generator of the device.
        scale: factor of the scores; `1/√K` if not given.
        rotation: cosines and sines of the tokens' positions, `[B, T, K/2]` or `[1, T, K/2]` each; K must be even.

    Returns:
        `[B, T, D]`.

    Raises:
        UsageError: shapes that do not fit, a rotation of an odd K, a mask together with `is_causal`, or a dropout
            outside [0, 1).
    """
    if x.dim() != 3:
        raise UsageError(f"split_attention: x must be [B, T, D], got shape {list(x.shape)}")
    for name, weight in (
        ("q_weight", q_weight),
        ("k_weight", k_weight),
        ("v_weight", v_weight),
        ("o_weight", o_weight),
    ):
        _check_projection("split_attention", name, x, weight)
        if weight.shape != q_weight.shape or weight.shape[1] != weight.shape[2]:
            raise UsageError(
                f"split_attention: {name} must be [H, K, K] like q_weight {list(q_weight.shape)}, "
                f"got {list(weight.shape)}"
            )
    if mask is not None:
        if is_causal:
            raise UsageError("split_attention: is_causal and a mask exclude each other; give one of them")
        mask = _broadcastable_mask(mask, (x.shape[0], q_weight.shape[0], x.shape[1], x.shape[1]))
    if not 0 <= dropout < 1:
        raise UsageError(f"split_attention: dropout must be at least 0 and below 1, got {dropout}")
    if rotation is not None:
        _check_rotation(rotation, (x.shape[0], x.shape[1], q_weight.shape[2]))
    return run(
        "split_attention",
        x,
        q_weight,
        k_weight,
        v_weight,
        o_weight,
        is_causal,
        mask,
        dropout,
        1 / math.sqrt(q_weight.shape[2]) if scale is None else scale,
        *(rotation or (None, None)),
    )


def _check_projection(op: str, name: str, x: Tensor, weight: Tensor) -> None:
    if x.dim() == 0:
        raise UsageError(f"{op}: x must be [..., H·in/H], got a single number")
    width = x.shape[-1]
    if weight.dim() != 3 or weight.shape[0] * weight.shape[1] != width:
        raise UsageError(
            f"{op}: {name} must be [H, in/H, out/H] with H·in/H = {width}, the width of its input; "
            f"got {list(weight.shape)}"
        )
    # Not `0 in weight.shape`: see `_broadcastable_mask`.
    if any(size == 0 for size in weight.shape):
        raise UsageError(f"{op}: {name} has nothing in it, got {list(weight.shape)}")


def _broadcastable_mask(mask: Tensor, scores_shape: tuple[int, int, int, int]) -> Tensor:
    """The mask with four axes, each of length 1 or that of the scores `[B, H, T, T]`."""
    padded = mask[(None,) * (4 - mask.dim())]
    # Not `size in (1, full)`: while compiling, that compares a number and a symbolic size by identity.
    if padded.dim() != 4 or any(
        size != 1 and size != full for size, full in zip(padded.shape, scores_shape, strict=True)
    ):
        raise UsageError(
            f"split_attention: mask must broadcast to [B, H, T, T] = {list(scores_shape)}, got {list(mask.shape)}"
        )
    return padded


def _check_rotation(rotation: tuple[Tensor, Tensor], heads_shape: tuple[int, int, int]) -> None:
    """Refuse what cannot turn the heads `[B, T, K]`."""
    batch, tokens, head_dim = heads_shape
    if head_dim % 2:
        raise UsageError(f"split_attention: rotation turns channels in pairs, and a head is {head_dim} channels wide")
    for name, angles in zip(("cosines", "sines"), rotation, strict=True):
        shape = angles.shape
        # Not `shape in (...)`: see `_broadcastable_mask`.
        if len(shape) != 3 or (shape[0] != 1 and shape[0] != batch) or shape[1:] != (tokens, head_dim // 2):
            raise UsageError(
                f"split_attention: the rotation's {name} must be [B, T, K/2] = {[batch, tokens, head_dim // 2]}, "
                f"or the same with B = 1; got {list(shape)}"
            )


def _check_bias(op: str, name: str, bias: Tensor | None, weight: Tensor) -> None:
    width = weight.shape[0] * weight.shape[2]
    if bias is not None and bias.shape != (width,):
        raise UsageError(f"{op}: {name} must be [{width}], the width of its output; got {list(bias.shape)}")
