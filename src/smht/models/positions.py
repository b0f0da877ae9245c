"""Which position each token has."""

import torch
import torch.nn.functional as F
from torch import Tensor
from transformers.cache_utils import Cache

from smht.errors import UsageError


def count_positions(inputs_embeds: Tensor, attention_mask: Tensor | None, cache: Cache | None) -> Tensor:
    """Positions of the new tokens, counted over real tokens only.

    Padding on the left moves no token: the first real token has position 0. Padded places get position 0,
    which nothing attends to.

    Args:
        inputs_embeds: `[B, T, D]`.
        attention_mask: `[B, S]` over cached and new tokens, or None, or a prepared 4-D mask.
        cache: holds the tokens before these.

    Returns:
        `[B, T]` or `[1, T]`, int64.

    Raises:
        UsageError: the attention mask ends before the new tokens do.
    """
    tokens, past = inputs_embeds.shape[1], cached_tokens(cache)
    columns = torch.arange(tokens, device=inputs_embeds.device) + past
    if attention_mask is None or attention_mask.dim() != 2:
        return columns[None]
    # A static cache counts in a tensor, to be left alone, and comes with a mask as long as the cache.
    if isinstance(past, int) and attention_mask.shape[1] < past + tokens:
        raise UsageError(
            f"the attention mask covers {attention_mask.shape[1]} tokens, but there are {past + tokens}: "
            f"{past} in the cache and {tokens} new"
        )
    positions = (attention_mask.long().cumsum(-1) - 1).clamp_min(0)
    return positions[:, columns]


def check_attention_mask(attention_mask: Tensor | None, inputs_embeds: Tensor, cache: Cache | None) -> Tensor | None:
    """The attention mask with booleans where it has two axes; whatever is not 0 is a token.

    Args:
        attention_mask: `[B, S]` over cached and new tokens, or a prepared 4-D mask.
        inputs_embeds: `[B, T, D]`.
        cache: holds the tokens before these.

    Raises:
        UsageError: another number of axes or of rows, or without a cache another number of tokens.
    """
    if attention_mask is None or not isinstance(attention_mask, Tensor) or attention_mask.dim() == 4:
        return attention_mask
    batch, tokens = inputs_embeds.shape[:2]
    if attention_mask.dim() != 2 or attention_mask.shape[0] != batch:
        raise UsageError(
            f"the attention mask must be [B, S] with B = {batch}, 1 at tokens and 0 at padding; "
            f"got {list(attention_mask.shape)}"
        )
    # A static cache comes with a mask as long as itself.
    if cache is None or not cache.is_compileable:
        total = cached_tokens(cache) + tokens
        if attention_mask.shape[1] > total:
            raise UsageError(f"the attention mask covers {attention_mask.shape[1]} tokens, but there are {total}")
    return attention_mask != 0


def check_position_ids(position_ids: Tensor, inputs_embeds: Tensor, cache: Cache | None, max_positions: int) -> None:
    """Refuse positions that the model does not have.

    Args:
        position_ids: `[B, T]` or `[1, T]`.
        inputs_embeds: `[B, T, D]`.
        cache: holds the tokens before these.
        max_positions: how many positions there are.

    Raises:
        UsageError: a position below 0 or not below `max_positions`.
    """
    if torch.compiler.is_compiling() or not position_ids.numel():
        return
    if position_ids.device.type != "cpu":
        # A look at the values waits for the device, so the length alone has to give reason for it.
        past = cached_tokens(cache)
        if not isinstance(past, int) or past + inputs_embeds.shape[1] <= max_positions:
            return
    low, high = (int(bound) for bound in torch.aminmax(position_ids))
    if low < 0 or high >= max_positions:
        raise UsageError(
            f"position {low if low < 0 else high} is outside the model's {max_positions} positions; "
            "give fewer tokens, or use a model with a longer context"
        )


def real_columns(attention_mask: Tensor, columns: int) -> Tensor:
    """The attention mask `[B, S]` as booleans over `columns` columns; those past its end hold no tokens yet."""
    mask = attention_mask.bool()[:, :columns]
    return F.pad(mask, (0, columns - mask.shape[1]))


def cached_tokens(cache: Cache | None) -> int | Tensor:
    """How many tokens the cache holds."""
    return 0 if cache is None else cache.get_seq_length()
