"""The task of language modelling: predict the next token of any text."""

import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, BinaryIO

from torch import nn
from torch.utils.data import Dataset

from smht.tasks.corpus import Corpus
from smht.tasks.hold_out import hold_out
from smht.tasks.hub import HUB_PREFIX
from smht.tasks.sources import read_again
from smht.tasks.task import DataRequest, Examples, Item, Metric, Score, Task, TaskData
from smht.tasks.text_files import STANDARD_INPUT, STANDARD_LIBRARY, read_texts, standard_library
from smht.tasks.token_stream import TokenStream, TrainingWindows, collate, count_windows, evaluate, tokenize
from smht.tokenization import decode_document

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast

    from smht.models import SmhtConfig, SmhtForCausalLM

_SAMPLE_TOKENS = 160
_EXCERPT_BYTES = 400


@dataclass(frozen=True)
class TextData(TaskData):
    """A corpus, divided."""

    whole: Corpus
    training: Corpus
    validation: Corpus

    def manifest(self) -> dict[str, dict[str, Any]]:
        """See `TaskData`."""
        parts = {"text": self.whole, "training": self.training, "validation": self.validation}
        return {name: part.to_manifest() for name, part in parts.items()}

    def describe(self, tokens: int) -> str:
        """See `TaskData`."""
        return (
            f"{self.whole.description}: {self.training.num_bytes:,} bytes to learn from ({tokens:,} tokens), "
            f"{self.validation.num_bytes:,} held out; sha256 {self.whole.sha256[:12]}"
        )

    def texts(self, errors: str) -> list[str]:
        """See `TaskData`."""
        documents = self.training.documents
        return [decode_document(document.data, source=document.name, errors=errors) for document in documents]

    def encode(self, tokenizer: "PreTrainedTokenizerFast", context: int, errors: str) -> "WindowedText":
        """See `TaskData`."""
        training = tokenize(tokenizer, self.training, errors)
        return WindowedText(training, tokenize(tokenizer, self.validation, errors), context)

    def standard_input(self) -> bytes | None:
        """See `TaskData`."""
        documents = self.whole.documents
        return next((document.data for document in documents if document.name == STANDARD_INPUT), None)


class WindowedText(Examples):
    """Two streams of tokens, cut into windows of the context.

    Args:
        training: what to learn from.
        validation: what to evaluate on.
        context: `T`.

    Raises:
        UsageError: the training text is shorter than one window.
    """

    def __init__(self, training: TokenStream, validation: TokenStream, context: int) -> None:
        self.training, self.validation, self.context = training, validation, context
        self.items_per_epoch = count_windows(training, context)
        self.tokens_per_item = float(context)
        self.validation_items = max(1, (len(validation) - 1) // context)
        self.token_counts = len(training), len(validation)
        self.timed_part = 16, max(1.0, self.validation_items / 16)

    def dataset(self, seed: int, length: int, batch_size: int) -> Dataset[Item]:
        """See `Examples`."""
        return TrainingWindows(self.training, self.context, seed, length)

    def describe_batch(self, batch_size: int) -> str:
        """See `Examples`."""
        return f"{batch_size} × {self.context} tokens"

    def collate(self, items: Sequence[Item]) -> dict[str, Any]:
        """See `Examples`."""
        return collate(items)

    def score(self, model: nn.Module, limit: int | None = None, is_final: bool = False) -> Score:
        """Loss and bits per byte; see `Examples`."""
        result = evaluate(model, self.validation, self.context, windows=limit)
        return Score(result.loss, {"bits_per_byte": result.bits_per_byte})


def excerpt(data: bytes) -> str:
    """A few whole lines from the middle of a document; what is not UTF-8 as U+FFFD."""
    middle = data.find(b"\n", len(data) // 2) + 1
    lines = data[middle : middle + _EXCERPT_BYTES].splitlines(keepends=True)
    whole = lines[:-1] if len(lines) > 1 else lines
    return b"".join(whole).decode("utf-8", "replace")


class LanguageModelling(Task):
    """Any text; nats per token and bits per byte."""

    name = "language-modelling"
    stacks = ("decoder",)
    preset = "smht-small"
    tokenizer = "bpe"
    metrics = (Metric("bits_per_byte", "bits per byte", "{:.4f}", "bits/byte"),)
    loss_unit = "nats/token"

    def model_class(self) -> "type[SmhtForCausalLM]":
        """See `Task`."""
        from smht.models import SmhtForCausalLM

        return SmhtForCausalLM

    def read(self, request: DataRequest, stdin: BinaryIO | None = None, is_again: bool = False) -> TextData:
        """Any files; the Python standard library's source by default."""
        if request.dataset:
            whole = read_again((HUB_PREFIX + request.dataset,))
        elif is_again:
            whole = read_again(request.sources, stdin=stdin)
        else:
            whole = read_texts(request.sources, stdin=stdin) if request.sources else standard_library()
        if request.validation_sources:
            return TextData(whole, whole, read_texts(request.validation_sources))
        return TextData(whole, *hold_out(whole, fraction=request.validation_fraction))

    def encode_for_evaluation(
        self, sources: Sequence[str], model: "SmhtForCausalLM", tokenizer: "PreTrainedTokenizerFast"
    ) -> WindowedText:
        """Any files, in windows of the model's context."""
        stream = tokenize(tokenizer, read_texts(sources))
        return WindowedText(stream, stream, model.config.max_position_embeddings)

    def default_batch_size(self, context: int) -> int:
        """About 2,048 tokens a step; half as many learned as much in the same time (docs/log.md)."""
        return max(1, round(2048 / context))

    def default_learning_rate(self, config: "SmhtConfig") -> float:
        """By width as in µP (arXiv:2203.03466), from what did best at 128 and 256 (docs/log.md).

        A split model bears a higher rate than a dense one.
        """
        return round((1.28 if config.split else 0.77) / max(64, config.hidden_size), 5)

    def sample(self, model: "SmhtForCausalLM", tokenizer: "PreTrainedTokenizerFast", data: TaskData) -> str:
        """A few lines of held-out text, and what the model goes on with."""
        from smht.tasks.generation import Sampling, encode_prompt, stream_text

        assert isinstance(data, TextData)
        prompt = excerpt(max((document.data for document in data.validation.documents), key=len))
        sampling = Sampling(max_new_tokens=_SAMPLE_TOKENS, min_new_tokens=_SAMPLE_TOKENS // 2)
        pieces = stream_text(model, tokenizer, encode_prompt(tokenizer, prompt.encode()), sampling)
        return f"--- held-out text\n{prompt.rstrip()}\n--- the model goes on\n{''.join(pieces)}"

    def next_command(self, run: str, data: TaskData) -> str:
        """Let it write."""
        assert isinstance(data, TextData)
        prompt = "def " if data.whole.sources == (STANDARD_LIBRARY,) else "The "
        return f"smht generate {shlex.quote(run)} {shlex.quote(prompt)}"
