"""Block-sparse attention: every token sees its own block and one summary token of each other block.

Positions are cut into blocks of `block_size`; the last position of a block is its summary. This is the `fixed` pattern
of Child et al. 2019 (arXiv:1904.10509, section 4.3) with one summary a block. A token sees at most
`C = block_size + T/block_size` keys, and time and memory grow with `T·C`: with `T·√T`, the O(n√n) of seed 004, for
blocks of `√T` tokens.

Scores against the own block and against the summaries are two batched products; one softmax runs over both. Nothing of
`T·T` elements is made.
"""

import math
from collections.abc import Callable
from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor

from smht.errors import UsageError

RelativeBias = Callable[[Tensor], Tensor]
"""int64 relative positions (key minus query) of any shape `[*]` to what is added to the scores, `[H, *]`."""


def block_sparse_mask(query_positions: Tensor, key_positions: Tensor, block_size: int, is_causal: bool) -> Tensor:
    """The pattern as a dense mask: the definition of what `block_sparse_attention` computes.

    A causal query sees the keys of its block up to itself and the summaries of earlier blocks; any other query sees its
    whole block and the summaries of all blocks.

    Args:
        query_positions: `[..., T]`, integers from 0.
        key_positions: `[..., S]`, integers from 0.
        block_size: positions in a block.
        is_causal: whether later keys are hidden.

    Returns:
        Boolean `[..., T, S]`, True where attention is allowed.

    Raises:
        UsageError: `block_size` is below 1.
    """
    _check_block_size("block_sparse_mask", block_size)
    queries, keys = query_positions.unsqueeze(-1), key_positions.unsqueeze(-2)
    query_blocks, key_blocks = queries // block_size, keys // block_size
    is_local = query_blocks == key_blocks
    is_summary = keys % block_size == block_size - 1
    if is_causal:
        return (is_local & (keys <= queries)) | (is_summary & (key_blocks < query_blocks))
    return is_local | is_summary


def block_sparse_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    *,
    block_size: int,
    is_causal: bool,
    key_padding: Tensor | None = None,
    dropout: float = 0.0,
    scale: float | None = None,
    relative_bias: RelativeBias | None = None,
) -> Tensor:
    """Self-attention of whole sequences, `softmax(q · kᵀ · scale + bias) · v` under `block_sparse_mask`.

    Positions count real tokens: a row gives the same outputs wherever its padding lies. Padded keys are never seen,
    whatever they hold, and the outputs of padded queries are zero.

    Args:
        query: `[B, H, T, K]`.
        key: `[B, H, T, K]`.
        value: `[B, H, T, K]`.
        block_size: positions in a block.
        is_causal: whether later keys are hidden.
        key_padding: boolean `[B, T]`, True at real tokens, which must be contiguous in each row; all are real if not
            given.
        dropout: probability that an attention weight is dropped, drawn from PyTorch's default generator of the device.
        scale: factor of the scores; `1/√K` if not given.
        relative_bias: gives what is added to the scores by relative position. It is called twice, on `[bs, bs]` and
            `[2·nb - 1, bs]` positions, where `bs` is the block size and `nb` the number of blocks; all lie within
            `-(T - 1)..T - 1`.

    Returns:
        `[B, H, T, K]`.

    Raises:
        UsageError: shapes that do not fit, `block_size` below 1, a dropout outside [0, 1), or (on CPU, outside compiled
            graphs) padding between real tokens.
    """
    op = "block_sparse_attention"
    _check_common(op, query, block_size)
    _check_self_attention(op, query, key, value, key_padding)
    if not 0 <= dropout < 1:
        raise UsageError(f"{op}: dropout must be at least 0 and below 1, got {dropout}")
    tokens = query.shape[2]
    if tokens < block_size:
        # One block, without its padding.
        block_size = max(tokens, 1)
    length = -(-tokens // block_size) * block_size
    places = torch.arange(length, device=query.device)

    attend = partial(
        _attend,
        tokens=tokens,
        block_size=block_size,
        is_causal=is_causal,
        dropout=dropout,
        scale=_scale(scale, query.shape[-1]),
        relative_bias=relative_bias,
    )
    if key_padding is None:
        query, key, value = (F.pad(x, (0, 0, 0, length - tokens)) for x in (query, key, value))
        return attend(query, key, value, (places < tokens).unsqueeze(0))[:, :, :tokens]

    _check_contiguous(op, key_padding)
    first_column = (key_padding.cumsum(-1) == 0).sum(-1, keepdim=True)
    is_real = places < key_padding.sum(-1, keepdim=True)
    columns = (places + first_column).clamp(max=tokens - 1)
    query, key, value = (_move_tokens(x, columns, is_real) for x in (query, key, value))
    return _move_tokens(attend(query, key, value, is_real), (places[:tokens] - first_column).clamp(min=0), key_padding)


def block_sparse_decode(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    *,
    block_size: int,
    query_positions: Tensor,
    first_position_column: Tensor,
    scale: float | None = None,
    relative_bias: RelativeBias | None = None,
) -> Tensor:
    """Causal block-sparse attention of new tokens to a cache, `O(T·(block_size + S/block_size))`.

    Gives what `block_sparse_attention` gives at these positions. Only the columns that a query may see enter its
    result; padding, later columns and unused ones may hold anything.

    Args:
        query: `[B, H, T, K]`, the new tokens.
        key: `[B, H, S, K]`, the cache with the new tokens; more columns may follow.
        value: `[B, H, S, K]`.
        block_size: positions in a block.
        query_positions: `[B, T]`, integers. A query at a negative position is padding: it sees nothing and gives zeros.
        first_position_column: `[B]`, integers: position `p` of row `b` lies in column `p + first_position_column[b]`,
            which must be a column of the cache for every query.
        scale: factor of the scores; `1/√K` if not given.
        relative_bias: gives what is added to the scores by relative position; called on `[B, T, bs + S // bs]`
            positions, where `bs` is the block size.

    Returns:
        `[B, H, T, K]`.

    Raises:
        UsageError: shapes that do not fit, or `block_size` below 1.
    """
    op = "block_sparse_decode"
    _check_common(op, query, block_size)
    _check_decode(op, query, key, value, query_positions, first_position_column)
    columns = key.shape[2]
    queries = query_positions.unsqueeze(-1)
    block_starts = queries // block_size * block_size
    local = block_starts + torch.arange(block_size, device=query.device)
    summaries = torch.arange(columns // block_size, device=query.device) * block_size + block_size - 1
    summaries = summaries.expand(*query_positions.shape, -1)
    key_positions = torch.cat([local, summaries], -1)
    is_seen = torch.cat([local <= queries, summaries < block_starts], -1) & (queries >= 0)

    places = (key_positions + first_position_column[:, None, None]).clamp(0, columns - 1)
    keys, values = (_gather_columns(x, places, is_seen) for x in (key, value))
    scores = _at_least_float32((query * _scale(scale, query.shape[-1])).unsqueeze(-2) @ keys.transpose(-1, -2))
    scores = scores + _hide(~is_seen, scores.dtype)[:, None, :, None]
    if relative_bias is not None:
        relative = torch.where(is_seen, key_positions - queries, 0)
        scores = scores + _bias_at(relative_bias, relative, query.shape[1]).movedim(0, 1).unsqueeze(-2)
    return (scores.softmax(-1).to(values.dtype) @ values).squeeze(-2)


def _attend(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    is_real: Tensor,
    *,
    tokens: int,
    block_size: int,
    is_causal: bool,
    dropout: float,
    scale: float,
    relative_bias: RelativeBias | None,
) -> Tensor:
    """Attention between whole blocks, `[B, H, nb·bs, K]`, whose padding lies behind the real tokens and holds zeros.

    `is_real` is `[B or 1, nb·bs]`, at most `tokens` a row. Outputs of padded queries are finite and mean nothing.
    """
    batch, num_heads, length, width = query.shape
    num_blocks = length // block_size
    query, key, value = (x.reshape(batch, num_heads, num_blocks, block_size, width) for x in (query, key, value))
    scores = _scores(query * scale, key)
    scores = _add(scores, _pattern_bias(is_real, num_blocks, block_size, is_causal, scores[0].dtype))
    if relative_bias is not None:
        scores = _add(scores, _position_bias(relative_bias, query, tokens, is_causal))
    weights = F.dropout(torch.cat(scores, -1).softmax(-1), dropout)
    return _mix(weights.to(value.dtype), value)


def _scores(query: Tensor, key: Tensor) -> tuple[Tensor, Tensor]:
    """From `[B, H, nb, bs, K]`: scores of the own block `[B, H, nb, bs, bs]` and of summaries `[B, H, nb, bs, nb]`."""
    local = query @ key.transpose(-1, -2)
    # As one product of [T, K] and [K, nb] a head, which spares a copy of the summaries for each block.
    summary = (query.flatten(2, 3) @ key[:, :, :, -1].transpose(-1, -2)).unflatten(2, query.shape[2:4])
    return _at_least_float32(local), _at_least_float32(summary)


def _mix(weights: Tensor, value: Tensor) -> Tensor:
    """Values `[B, H, nb, bs, K]` weighted by `[B, H, nb, bs, bs + nb]`: `[B, H, nb·bs, K]`."""
    local, summary = weights.split([value.shape[3], value.shape[2]], -1)
    return (local @ value).flatten(2, 3) + summary.flatten(2, 3) @ value[:, :, :, -1]


def _add(scores: tuple[Tensor, Tensor], biases: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
    return scores[0] + biases[0], scores[1] + biases[1]


def _at_least_float32(scores: Tensor) -> Tensor:
    return scores.to(torch.promote_types(scores.dtype, torch.float32))


def _hide(is_hidden: Tensor, dtype: torch.dtype) -> Tensor:
    """What added to a score makes its weight 0.

    Finite, so that a query that sees nothing has finite weights and gradients. The values that it mixes are zeros or
    its output is dropped.
    """
    return is_hidden.to(dtype) * (torch.finfo(dtype).min / 2)


def _pattern_bias(
    is_real: Tensor, num_blocks: int, block_size: int, is_causal: bool, dtype: torch.dtype
) -> tuple[Tensor, Tensor]:
    """Hides what the pattern hides, and padding, in the two parts of the scores; `is_real` is `[B or 1, nb·bs]`."""
    blocks = torch.arange(num_blocks, device=is_real.device)
    if is_causal:
        # Padding lies behind the real tokens by now, where causal queries see nothing.
        places = torch.arange(block_size, device=is_real.device)
        local, summary = places > places.unsqueeze(-1), blocks >= blocks.unsqueeze(-1)
        return _hide(local, dtype), _hide(summary, dtype).unsqueeze(-2)
    is_padding = ~is_real.unflatten(-1, (num_blocks, block_size))
    local = is_padding[:, None, :, None]
    summary = (blocks == blocks.unsqueeze(-1)) | is_padding[:, None, :, -1]
    return _hide(local, dtype), _hide(summary, dtype)[:, None, :, None]


def _position_bias(relative_bias: RelativeBias, query: Tensor, tokens: int, is_causal: bool) -> tuple[Tensor, Tensor]:
    """The bias of local scores `[H, 1, bs, bs]` and of summary scores `[H, nb, bs, nb]`."""
    _, num_heads, num_blocks, block_size, _ = query.shape
    places = torch.arange(block_size, device=query.device)
    blocks = torch.arange(num_blocks, device=query.device)
    # Only hidden scores lie outside this range, for which a table of biases need not have an entry.
    bounds = {"min": -max(tokens - 1, 0), "max": 0 if is_causal else max(tokens - 1, 0)}
    local = _bias_at(relative_bias, (places - places.unsqueeze(-1)).clamp(**bounds), num_heads)
    # By distance in blocks and place in the block: few positions, and index_select is fast in both directions.
    distances = torch.arange(1 - num_blocks, num_blocks, device=query.device).unsqueeze(-1)
    positions = distances * block_size + (block_size - 1 - places)
    by_distance = _bias_at(relative_bias, positions.clamp(**bounds), num_heads)
    rows = (blocks - blocks.unsqueeze(-1) + num_blocks - 1).flatten()
    summary = by_distance.index_select(1, rows).unflatten(1, (num_blocks, num_blocks)).transpose(-1, -2)
    return local.unsqueeze(1), summary


def _bias_at(relative_bias: RelativeBias, relative_positions: Tensor, num_heads: int) -> Tensor:
    bias = relative_bias(relative_positions)
    if bias.shape != (num_heads, *relative_positions.shape):
        raise UsageError(
            f"relative_bias must give {[num_heads, *relative_positions.shape]}, heads first, "
            f"for positions {list(relative_positions.shape)}; got {list(bias.shape)}"
        )
    return bias


def _move_tokens(x: Tensor, columns: Tensor, is_real: Tensor) -> Tensor:
    """Token `columns[b, i]` of row `b` at place `i`, zeros where not real: `[B, H, T, K]` to `[B, H, M, K]`."""
    batch, heads, tokens, width = x.shape
    rows = columns + tokens * torch.arange(batch, device=x.device).unsqueeze(-1)
    # Whole rows: on CPU several times faster than gather, forward and backward.
    moved = x.transpose(1, 2).reshape(batch * tokens, heads * width).index_select(0, rows.flatten())
    moved.masked_fill_(~is_real.reshape(-1, 1), 0)
    return moved.view(batch, columns.shape[1], heads, width).transpose(1, 2)


def _gather_columns(x: Tensor, columns: Tensor, is_seen: Tensor) -> Tensor:
    """Columns `[B, T, C]` of a cache `[B, H, S, K]`, zeros where not seen: `[B, H, T, C, K]`."""
    rows = torch.arange(x.shape[0], device=x.device)[:, None, None, None]
    heads = torch.arange(x.shape[1], device=x.device)[:, None, None]
    return x[rows, heads, columns.unsqueeze(1)].masked_fill_(~is_seen[:, None, :, :, None], 0)


def _scale(scale: float | None, width: int) -> float:
    return 1 / math.sqrt(width) if scale is None else scale


def _check_block_size(op: str, block_size: int) -> None:
    if block_size < 1:
        raise UsageError(f"{op}: block_size must be at least 1, got {block_size}")


def _check_common(op: str, query: Tensor, block_size: int) -> None:
    _check_block_size(op, block_size)
    if query.dim() != 4:
        raise UsageError(f"{op}: query must be [B, H, T, K], got shape {list(query.shape)}")


def _check_self_attention(op: str, query: Tensor, key: Tensor, value: Tensor, key_padding: Tensor | None) -> None:
    for name, tensor in (("key", key), ("value", value)):
        if tensor.shape != query.shape:
            raise UsageError(
                f"{op}: {name} must be [B, H, T, K] like query {list(query.shape)}, got {list(tensor.shape)}"
            )
    expected = (query.shape[0], query.shape[2])
    if key_padding is not None and (key_padding.shape != expected or key_padding.dtype != torch.bool):
        raise UsageError(
            f"{op}: key_padding must be boolean [B, T] = {list(expected)}, "
            f"got {list(key_padding.shape)} of {key_padding.dtype}"
        )


def _check_decode(
    op: str, query: Tensor, key: Tensor, value: Tensor, query_positions: Tensor, first_position_column: Tensor
) -> None:
    batch, heads, tokens, width = query.shape
    if key.dim() != 4 or key.shape[:2] != (batch, heads) or key.shape[3] != width:
        raise UsageError(f"{op}: key must be [{batch}, {heads}, S, {width}], got {list(key.shape)}")
    if value.shape != key.shape:
        raise UsageError(f"{op}: value must be like key {list(key.shape)}, got {list(value.shape)}")
    if query_positions.shape != (batch, tokens):
        raise UsageError(f"{op}: query_positions must be [{batch}, {tokens}], got {list(query_positions.shape)}")
    if first_position_column.shape != (batch,):
        raise UsageError(f"{op}: first_position_column must be [{batch}], got {list(first_position_column.shape)}")


def _check_contiguous(op: str, key_padding: Tensor) -> None:
    if key_padding.device.type != "cpu" or torch.compiler.is_compiling():
        # Elsewhere looking at values stalls the device or breaks the graph.
        return
    starts = key_padding.clone()
    starts[:, 1:] &= ~key_padding[:, :-1]
    interrupted = (starts.sum(-1) > 1).nonzero()
    if len(interrupted):
        raise UsageError(
            f"{op}: the real tokens of row {int(interrupted[0])} have padding between them; "
            "key_padding must be True in one run of columns"
        )
