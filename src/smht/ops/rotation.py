"""Turning queries and keys by their positions (arXiv:2104.09864)."""

import torch
from torch import Tensor


def rotate(heads: Tensor, cosines: Tensor, sines: Tensor) -> Tensor:
    """Turn channel `i` with channel `i + K/2` of each head: the pair is a point of a plane, turned about its origin.

    Args:
        heads: queries or keys, `[B, H, T, K]`.
        cosines: of the angles, `[B, T, K/2]` or `[1, T, K/2]`; taken in the dtype of `heads`.
        sines: likewise.

    Returns:
        `[B, H, T, K]`.
    """
    cosines, sines = cosines[:, None].to(heads.dtype), sines[:, None].to(heads.dtype)
    first, second = heads.chunk(2, dim=-1)
    return torch.cat([first * cosines - second * sines, second * cosines + first * sines], dim=-1)
