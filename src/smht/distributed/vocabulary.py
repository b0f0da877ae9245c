"""A language model's head and its loss where each rank has a part of the vocabulary (arXiv:1909.08053, section 3).

The hidden state `[N, D]` is cut by channels, so either all channels go to every rank, which then has the logits of its
part of the vocabulary, or each rank's channels give a part of every logit and these are summed, each rank getting the
sums of its part of the vocabulary. Numbers that a rank sends, forward; backward as many:

| | untied | tied |
|---|---|---|
| join channels | N·D·(P−1)/P | N·D·(P−1)/P + V·D·(P−1)/P² |
| sum partial logits | N·V·(P−1)/P | N·V·(P−1)/P |

An untied head is cut once and for all, by vocabulary where V > D. A tied one is cut by channels like the embedding that
it is, and the weights are dealt to the ranks anew for the first way, if that pays for the tokens at hand.
"""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from smht.distributed.ranks import Ranks


class ChannelHead(nn.Linear):
    """A head of which a rank has the columns of its channels, `[V, D/P]`."""


class VocabularyHead(nn.Linear):
    """A head of which a rank has the rows of its part of the vocabulary, `[V/P, D]`."""


def make_head(vocab_size: int, hidden_size: int, is_tied: bool, ranks: Ranks) -> ChannelHead | VocabularyHead:
    """This rank's part of a head `[V, D]`, cut so that less has to be sent."""
    if is_tied or vocab_size <= hidden_size:
        return ChannelHead(hidden_size // ranks.size, vocab_size, bias=False)
    rows = ranks.part(vocab_size)
    return VocabularyHead(hidden_size, rows.stop - rows.start, bias=False)


def joins_channels(tokens: int, vocab_size: int, hidden_size: int, is_tied: bool, ranks: int) -> bool:
    """Whether joining the channels sends less than summing partial logits."""
    dealt = vocab_size * hidden_size / ranks if is_tied else 0
    return tokens * hidden_size + dealt < tokens * vocab_size


def part_of_logits(
    hidden: Tensor, head: ChannelHead | VocabularyHead, vocab_size: int, is_tied: bool, ranks: Ranks
) -> Tensor:
    """Logits of this rank's part of the vocabulary.

    Args:
        hidden: `[N, D/P]`, this rank's channels.
        head: this rank's part.
        vocab_size: `V`.
        is_tied: whether the head is the embedding.
        ranks: who has the rest.

    Returns:
        `[N, ⌈V/P⌉]`; beyond the vocabulary the lowest number there is.
    """
    each = -(-vocab_size // ranks.size)
    missing = each * ranks.size - vocab_size
    if isinstance(head, VocabularyHead):
        logits = F.linear(ranks.join_channels(hidden), head.weight)
        return _fill_up(logits, each)
    width = head.weight.shape[1]
    if is_tied and joins_channels(hidden.shape[0], vocab_size, width * ranks.size, True, ranks.size):
        dealt = ranks.exchange(F.pad(head.weight, (0, 0, 0, missing)), [each] * ranks.size, [each] * ranks.size)
        rows = dealt.view(ranks.size, each, width).transpose(0, 1).flatten(1)
        logits = F.linear(ranks.join_channels(hidden), rows)
    else:
        logits = ranks.sum_and_cut(F.pad(F.linear(hidden, head.weight), (0, missing)))
    part = ranks.part(vocab_size)
    return _fill_up(logits[:, : part.stop - part.start], each)


def _fill_up(logits: Tensor, width: int) -> Tensor:
    return F.pad(logits, (0, width - logits.shape[1]), value=torch.finfo(logits.dtype).min)


def vocabulary_cross_entropy(logits: Tensor, labels: Tensor, ignore_index: int, ranks: Ranks) -> Tensor:
    """Total surprise of labels, `-Σ ln softmax(logits)[label]`, in nats, as `smht.ops.linear_cross_entropy` has it.

    Three numbers a token cross between ranks: the largest logit, the sum of the exponentials, and the label's logit.
    Backward, nothing.

    Args:
        logits: `[N, ⌈V/P⌉]`, of this rank's part of the vocabulary.
        labels: `[N]`, int64.
        ignore_index: the label of tokens that do not count.
        ranks: who has the rest.

    Returns:
        A number, the same on every rank.
    """
    wide = logits.to(torch.promote_types(logits.dtype, torch.float32))
    return _VocabularyCrossEntropy.apply(wide, labels, ignore_index, ranks)


class _VocabularyCrossEntropy(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, logits: Tensor, labels: Tensor, ignore_index: int, ranks: Ranks) -> Tensor:
        local = labels - ranks.rank * logits.shape[1]
        counts = labels != ignore_index
        is_here = counts & (local >= 0) & (local < logits.shape[1])
        local = local.where(is_here, 0)[:, None]
        own_largest = logits.amax(1)
        exponentials = torch.exp(logits - own_largest[:, None])
        label_logit = logits.gather(1, local)[:, 0].where(is_here, 0)
        numbers = torch.stack([own_largest, exponentials.sum(1), label_logit], dim=1)
        every_largest, every_sum, every_label = ranks.collect(numbers).unbind(-1)
        largest = every_largest.amax(0)
        total = (every_sum * torch.exp(every_largest - largest)).sum(0)
        # Probabilities from here on, in place.
        exponentials.mul_((torch.exp(own_largest - largest) / total)[:, None])
        ctx.save_for_backward(exponentials, local, is_here, counts)
        surprise = largest + total.log() - every_label.sum(0)
        return surprise.where(counts, 0).sum()

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: Any) -> tuple[Tensor, None, None, None]:  # pyright: ignore[reportIncompatibleMethodOverride]
        gradient: Tensor = gradients[0]
        probabilities, local, is_here, counts = ctx.saved_tensors
        result = probabilities.scatter_add(1, local, -is_here[:, None].to(probabilities.dtype))
        return result * (gradient * counts)[:, None], None, None, None
