"""A corpus as one stream of tokens, training windows out of it, and how well a model predicts it.

A stream is every document between a begin and an end token, one after the other. Axis letters: `B` batch,
`T` tokens of a window (the context), `S` tokens of the stream.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils.data import Dataset

from smht.errors import UsageError
from smht.models.labels import IGNORED
from smht.tasks.corpus import Corpus
from smht.tokenization import BOS_ID, EOS_ID, encode_document

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast

# Logits of this many numbers at a time bound what an evaluation keeps in memory (64 MiB in fp32).
_EVALUATION_LOGITS = 1 << 24


@dataclass(frozen=True)
class TokenStream:
    """A corpus as token ids.

    Attributes:
        ids: `[S]`, `uint16` or `uint32`: begin token, document, end token, and so on.
        num_bytes: bytes of the text, which the tokens other than begin and end tokens stand for.
    """

    ids: np.ndarray
    num_bytes: int

    def __len__(self) -> int:
        return len(self.ids)


def tokenize(tokenizer: "PreTrainedTokenizerFast", corpus: Corpus, errors: str = "strict") -> TokenStream:
    """The corpus as a stream of tokens.

    Args:
        tokenizer: one of smht's own.
        corpus: what to tokenize.
        errors: `strict`, or `replace` for bytes that are not UTF-8.

    Raises:
        UsageError: text that the tokenizer cannot read; the message says where.
    """
    pieces: list[np.ndarray] = []
    for document in corpus.documents:
        ids = encode_document(tokenizer, document.data, source=document.name, errors=errors)
        pieces += [np.array([BOS_ID], ids.dtype), ids, np.array([EOS_ID], ids.dtype)]
    return TokenStream(np.concatenate(pieces), corpus.num_bytes)


class TrainingWindows(Dataset[dict[str, Tensor]]):
    """Windows of the stream in an order that depends on nothing but the seed and the window's number.

    Window `i` is the same whenever and however often it is asked for, so a resumed run goes on exactly where it
    stopped. One pass over `windows_per_epoch` windows covers the stream once, from a start that differs from
    pass to pass, in shuffled order.

    Args:
        stream: what to learn.
        context: `T`.
        seed: of the order.
        length: how many windows there are in all: steps times batch size.

    Raises:
        UsageError: the stream is shorter than one window and the token after it.
    """

    def __init__(self, stream: TokenStream, context: int, seed: int, length: int) -> None:
        self.windows_per_epoch = count_windows(stream, context)
        self.stream, self.context, self.seed, self.length = stream, context, seed, length
        self._epoch = -1
        self._starts = np.empty(0, np.int64)

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, index: int) -> dict[str, Tensor]:
        """`input_ids` and `labels`, `[T]` each; `labels[t]` is the token after `input_ids[t]`.

        Raises:
            IndexError: there is no such window, as iteration expects it.
        """
        if not 0 <= index < self.length:
            raise IndexError(f"window {index} is not among the {self.length}")
        epoch, place = divmod(index, self.windows_per_epoch)
        if epoch != self._epoch:
            self._epoch, self._starts = epoch, self._shuffled_starts(epoch)
        start = self._starts[place]
        ids = torch.from_numpy(self.stream.ids[start : start + self.context + 1].astype(np.int64))
        labels = ids[1:].clone()
        # What document comes next is chance; where a document ends is not.
        labels[labels == BOS_ID] = IGNORED
        return {"input_ids": ids[:-1], "labels": labels}

    def _shuffled_starts(self, epoch: int) -> np.ndarray:
        generator = np.random.default_rng((self.seed, epoch))
        spare = len(self.stream) - 1 - self.windows_per_epoch * self.context
        first = generator.integers(0, spare + 1)
        return first + self.context * generator.permutation(self.windows_per_epoch)


def count_windows(stream: TokenStream, context: int) -> int:
    """How many windows of `context` tokens, and a token to predict after each, the stream holds.

    Raises:
        UsageError: not even one.
    """
    count = (len(stream) - 1) // context
    if count < 1:
        raise UsageError(
            f"the training text has {len(stream):,} tokens, fewer than one block of {context + 1}: "
            "give more text or a smaller --context"
        )
    return count


def collate(windows: Sequence[dict[str, Tensor]]) -> dict[str, Tensor | bool]:
    """A batch for the model: labels that are already shifted, no cache, and no logits beside the loss."""
    labels = torch.stack([window["labels"] for window in windows])
    return {
        "input_ids": torch.stack([window["input_ids"] for window in windows]),
        "labels": labels,
        "shift_labels": labels,
        "use_cache": False,
        "skip_logits": True,
    }


@dataclass(frozen=True)
class Evaluation:
    """What a model makes of a text.

    Attributes:
        nats: total surprise, `-Σ ln p(token)`.
        tokens: how many tokens were predicted.
        bytes: how many bytes of text these are.
    """

    nats: float
    tokens: int
    bytes: int

    @property
    def loss(self) -> float:
        """Nats per token."""
        return self.nats / self.tokens

    @property
    def perplexity(self) -> float:
        """e to the loss; infinite where that overflows."""
        return math.exp(self.loss) if self.loss < 700 else math.inf

    @property
    def bits_per_byte(self) -> float:
        """`nats / ln 2 / bytes`: comparable between tokenizers."""
        return self.nats / math.log(2) / self.bytes


def evaluate(
    model: nn.Module, stream: TokenStream, context: int, stride: int | None = None, windows: int | None = None
) -> Evaluation:
    """Predict every token of the stream once, the first of each document from the begin token.

    The stream is cut into windows of `context` tokens. With a `stride` smaller than the context, windows overlap
    and only tokens that no earlier window predicted count, so each is predicted from at least
    `context - stride` tokens (where the stream has them). Begin and end tokens are no text and do not count.

    Args:
        model: gives the `.loss` of `SmhtForCausalLM`; put into evaluation mode for the time.
        stream: the text.
        context: `T`.
        stride: how far a window is from the next; the context if not given.
        windows: how many to go by, where all would take too long: whole ones, spread evenly over the stream, which
            count for bytes in proportion to their tokens.

    Raises:
        UsageError: a stride below 1 or above the context.
    """
    stride = context if stride is None else stride
    if not 1 <= stride <= context:
        raise UsageError(f"stride = {stride} must be at least 1 and at most the context of {context}")
    device = next(model.parameters()).device
    was_training = model.training
    model.eval()
    nats, tokens = 0.0, 0
    try:
        with torch.inference_mode():
            for inputs, labels in _evaluation_batches(model, stream, context, stride, windows):
                if counted := int((labels != IGNORED).sum()):
                    nats += _nats(model, inputs.to(device), labels.to(device))
                    tokens += counted
    finally:
        model.train(was_training)
    text_tokens = int(((stream.ids != BOS_ID) & (stream.ids != EOS_ID)).sum())
    return Evaluation(nats, tokens, round(stream.num_bytes * tokens / max(1, text_tokens)))


def _nats(model: nn.Module, inputs: Tensor, labels: Tensor) -> float:
    """The summed loss of a batch: what it is divided by is 1."""
    options = {"use_cache": False, "skip_logits": True, "num_items_in_batch": 1}
    return model(input_ids=inputs, labels=labels, shift_labels=labels, **options).loss.double().item()


def _evaluation_batches(
    model: nn.Module, stream: TokenStream, context: int, stride: int, count: int | None
) -> Iterator[tuple[Tensor, Tensor]]:
    """Windows of equal length side by side; the last, shorter one alone, unless `count` whole ones are enough."""
    vocab_size = model.config.vocab_size  # pyright: ignore[reportAttributeAccessIssue]
    batch_size = max(1, _EVALUATION_LOGITS // (int(vocab_size) * context))  # pyright: ignore[reportArgumentType]
    starts = range(0, len(stream) - 1, stride)
    end = len(stream) - 1
    whole = [start for start in starts if start + context <= end]
    # Of the windows that reach past the end, the first predicts all that no whole one did, if anything.
    reached = whole[-1] + context if whole else 0
    rest = [start for start in starts if start + context > end][:1] if reached < end else []
    if count is not None and count < len(whole):
        whole, rest = [whole[i * len(whole) // count] for i in range(count)], []
    batches = [whole[i : i + batch_size] for i in range(0, len(whole), batch_size)] + [[start] for start in rest]
    for batch in batches:
        windows = [_evaluation_window(stream, start, context, stride) for start in batch]
        inputs, labels = (torch.from_numpy(np.stack(arrays)) for arrays in zip(*windows, strict=True))
        yield inputs, labels


def _evaluation_window(stream: TokenStream, start: int, context: int, stride: int) -> tuple[np.ndarray, np.ndarray]:
    ids = stream.ids[start : start + context + 1].astype(np.int64)
    labels = ids[1:].copy()
    labels[(labels == BOS_ID) | (labels == EOS_ID)] = IGNORED
    if start:
        labels[: context - stride] = IGNORED
    return ids[:-1], labels
