"""A continuation of a text that grows token by token, as a browser asks for it."""

from dataclasses import dataclass
from html import escape

import torch
from torch import Tensor

from smht.explorer.colours import PROBABILITIES
from smht.explorer.markup import paragraph, token
from smht.explorer.reading import Typed
from smht.explorer.subject import Subject
from smht.tasks.generation import Sampling, choose
from smht.tokenization import EOS_ID, decode_bytes


@dataclass(frozen=True)
class Continuation:
    """What has been added to a text.

    Attributes:
        ids: the tokens added.
        probabilities: that the model gave each of them, before temperature and top-k.
        randomness: state of the generator that the next choice goes on from.
        has_ended: whether the model has said that the text ends.
    """

    ids: tuple[int, ...]
    probabilities: tuple[float, ...]
    randomness: Tensor
    has_ended: bool = False


def begin(seed: int) -> Continuation:
    """Nothing yet."""
    return Continuation((), (), torch.Generator().manual_seed(seed).get_state())


@torch.inference_mode()
def extend(subject: Subject, typed: Typed, so_far: Continuation, sampling: Sampling) -> Continuation:
    """One more token, chosen as `smht generate` chooses it; none after the end.

    Args:
        subject: whose continuation.
        typed: what it continues, and what is done to heads; frozen ones keep their means over this text.
        so_far: what has been added to it.
        sampling: how to choose. Its seed counts in `begin` alone.

    When the context is full, the model goes on from the newest half of it.

    Raises:
        UsageError: see `Subject.inputs`, `HeadChanges.edits`, `Subject.edited` and `choose`.
    """
    if so_far.has_ended:
        return so_far
    text = subject.inputs(typed.text, typed.target)
    own = "decoder_input_ids" if subject.has_two_stacks else "input_ids"
    ids = [*text[own][0].tolist(), *so_far.ids]
    while len(ids) > subject.context:
        # The window that `stream_text` is in after so many tokens.
        ids = [*ids[: subject.context + 1][-max(1, subject.context // 2) :], *ids[subject.context + 1 :]]
    with subject.edited(typed.changes.edits(subject.heads), typed.changes.statistics, text):
        logits = subject.model(**{**text, own: torch.tensor([ids])}, use_cache=False).logits[0, -1].float()
    probabilities = logits.softmax(-1)
    if subject.tokenizer is not None:
        logits[[i for i in subject.tokenizer.all_special_ids if i != EOS_ID]] = -torch.inf
    generator = torch.Generator()
    generator.set_state(so_far.randomness)
    chosen = choose(logits, sampling, generator)
    return Continuation(
        (*so_far.ids, chosen),
        (*so_far.probabilities, float(probabilities[chosen])),
        generator.get_state(),
        subject.tokenizer is not None and chosen == EOS_ID,
    )


def added_text(subject: Subject, so_far: Continuation) -> str:
    """What was added, as it would be typed."""
    if subject.tokenizer is None:
        return "".join(f", {index}" for index in so_far.ids)
    return decode_bytes(subject.tokenizer, so_far.ids).decode("utf-8", "replace")


def draw(subject: Subject, so_far: Continuation) -> str:
    """Text and tokens of a continuation, as HTML."""
    if not so_far.ids:
        return paragraph("Nothing added yet.", "fine")
    items = "".join(
        f'<li style="{PROBABILITIES.under_text(probability)}">{token(name)}<small>{probability:.1%}</small></li>'
        for name, probability in zip(subject.labels(so_far.ids), so_far.probabilities, strict=True)
    )
    end = paragraph("The model ends the text here.", "fine") if so_far.has_ended else ""
    text = "" if subject.tokenizer is None else f'<pre dir="auto">{escape(added_text(subject, so_far))}</pre>'
    return f'{text}<ol class="tokens" aria-label="Tokens added">{items}</ol>{end}'
