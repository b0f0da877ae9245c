"""Which position each token has."""

import torch
from torch import Tensor
from transformers.cache_utils import Cache

from smht.errors import UsageError


def derive_position_ids(
    inputs_embeds: Tensor, attention_mask: Tensor | None, cache: Cache | None, max_positions: int
) -> torch.LongTensor:
    """Positions of the new tokens, counted over real tokens only.

    Padding on the left moves no token: the first real token has position 0. Padded places get position 0,
    which nothing attends to.

    Args:
        inputs_embeds: `[B, T, D]`.
        attention_mask: `[B, S]` over cached and new tokens, or None, or a prepared 4-D mask.
        cache: holds the tokens before these.
        max_positions: how many positions there are.

    Returns:
        `[B, T]` or `[1, T]`, int64.

    Raises:
        UsageError: more tokens than positions.
    """
    tokens, device = inputs_embeds.shape[1], inputs_embeds.device
    past = cache.get_seq_length() if cache is not None else 0
    if attention_mask is not None and attention_mask.dim() == 2:
        positions = (attention_mask.long().cumsum(-1) - 1).clamp_min(0)
        # A static cache comes with a mask as long as the cache: the new tokens end at past + T.
        positions = positions[:, past : past + tokens] if positions.shape[1] > tokens else positions
    else:
        positions = torch.arange(tokens, device=device)[None] + past
    _check_length(positions, past, tokens, max_positions)
    return positions  # pyright: ignore[reportReturnType]


def _check_length(positions: Tensor, past: int | Tensor, tokens: int, max_positions: int) -> None:
    # The shape alone settles almost every case; only padded batches need a look at the positions.
    if torch.compiler.is_compiling() or isinstance(past, Tensor) or past + tokens <= max_positions:
        return
    if positions.device.type == "cpu" and int(positions.max()) < max_positions:
        return
    raise UsageError(
        f"{past + tokens} tokens are more than the model's {max_positions} positions; "
        "shorten the input or train with a longer context"
    )
