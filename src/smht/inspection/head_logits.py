"""Logits as the exact sum of what each head's chunk contributes (seed 000, 6.2).

`logit_v = Σ_h ⟨U_v[h], z_h⟩`, where `z` is the last hidden state after the final norm, `U` the head's matrix and `[h]`
the channels of chunk `h`. In a split model without mixing a chunk is what its head made of its own chunk of the
embeddings, up to two numbers a token that the LayerNorms share; elsewhere the sum is as exact but says less.
"""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from smht.errors import UsageError
from smht.inspection.display import Displayed, Table, signed
from smht.inspection.edited_heads import edits_of
from smht.inspection.head_edits import Swap
from smht.inspection.lineage import ONLY_LAST, lineage
from smht.inspection.recording import evaluating
from smht.models import SmhtPreTrainedModel

_MOST_ROWS = 8


@dataclass(frozen=True, repr=False)
class HeadLogits(Displayed):
    """What each chunk says.

    Attributes:
        contributions: `[B, T, H, V]`; over `H` they sum to the logits. `V` is the tokens asked for.
        logits: `[B, T, V]`.
        is_by_lineage: whether chunk `h` of the last hidden state comes from chunk `h` of the embeddings alone, but for
            the norms' statistics.
        note: what the contributions mean, in a sentence.
        tokens: `[V]`, the ids of the tokens asked for; None for all.
    """

    contributions: Tensor
    logits: Tensor
    is_by_lineage: bool
    note: str
    tokens: Tensor | None = None

    def tables(self) -> list[Table]:
        """The tokens of the highest logits at the end of the first text, chunk by chunk."""
        logits, contributions = self.logits[0], self.contributions[0]
        if logits.dim() > 1:
            logits, contributions = logits[-1], contributions[-1]
        places = logits.topk(min(_MOST_ROWS, len(logits))).indices.tolist()
        names = places if self.tokens is None else self.tokens[places].tolist()
        rows = [
            (str(name), *(signed(value) for value in contributions[:, place].tolist()), f"{float(logits[place]):.4f}")
            for name, place in zip(names, places, strict=True)
        ]
        chunks = (f"chunk {chunk}" for chunk in range(contributions.shape[0]))
        caption = "highest logits at the end of the first text"
        return [Table(("token", *chunks, "logit"), tuple(rows), caption, self.note)]

    def between(self, first: int, second: int) -> Tensor:
        """What each chunk does for the `first` of the tokens asked for against the `second`, `[B, T, H]`.

        Over `H` they sum to the difference of the two tokens' losses, `loss(second) − loss(first)` in nats: both losses
        have the same `log Σ exp(logit)`, which cancels.

        Raises:
            UsageError: there are not so many tokens.
        """
        size = self.contributions.shape[-1]
        for place in (first, second):
            if not -size <= place < size:
                raise UsageError(f"there is no token {place} among the {size} asked for: they are 0 to {size - 1}")
        return self.contributions[..., first] - self.contributions[..., second]


@torch.no_grad()
def head_logits(model: SmhtPreTrainedModel, tokens: Tensor | None = None, **inputs: Any) -> HeadLogits:
    """Split the logits of a model with a head by chunk.

    Args:
        model: a language model, sequence-to-sequence model or classifier; put into evaluation mode for the time.
        tokens: `[V']`, the token ids (or label numbers) whose logits to split; all if not given.
        **inputs: what the model's forward takes.

    Raises:
        UsageError: a model without a head, a token outside the vocabulary, or what the model refuses.
    """
    head = getattr(model, "lm_head", None) or getattr(model, "score", None)
    if not isinstance(head, nn.Linear):
        raise UsageError(f"there are no logits to split: {type(model).__name__} has no head")
    weight = _rows(head.weight, tokens)
    kept: list[Tensor] = []
    handle = head.register_forward_pre_hook(lambda _, arguments: kept.append(arguments[0]))
    try:
        with evaluating(model):
            model(**inputs)
    finally:
        handle.remove()
    heads = model.config.num_attention_heads
    hidden = kept[-1].unflatten(-1, (heads, -1))
    contributions = torch.einsum("...hk,vhk->...hv", hidden, weight.unflatten(-1, (heads, -1)))
    is_by_lineage, note = _lineage(model)
    logits = torch.nn.functional.linear(kept[-1], weight)
    return HeadLogits(contributions, logits, is_by_lineage, note, tokens)


def _rows(weight: Tensor, tokens: Tensor | None) -> Tensor:
    if tokens is None:
        return weight
    size = weight.shape[0]
    wrong = tokens[(tokens < 0) | (tokens >= size)]
    if len(wrong):
        raise UsageError(f"token {int(wrong[0])} is not one of the head's {size}: they are 0 to {size - 1}")
    return weight[tokens]


def _lineage(model: SmhtPreTrainedModel) -> tuple[bool, str]:
    """The model's, as its heads are edited at the moment."""
    for edit in edits_of(model):
        if isinstance(edit, Swap) and edit.what == "outputs":
            return False, f"{ONLY_LAST}: heads {edit.head} and {edit.other} write in each other's chunks"
    return lineage(model.config)
