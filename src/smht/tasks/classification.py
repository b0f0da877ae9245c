"""The task of classification: one label for a text (seed 004's first project)."""

import io
import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, BinaryIO

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.data import Dataset

from smht.errors import UsageError, first_line
from smht.tasks.labelled import (
    MOVIE_REVIEWS,
    LabelledCorpus,
    hold_out_labelled,
    labelled_again,
    movie_reviews,
    read_labelled,
    refuse_one_class,
)
from smht.tasks.padding import ShuffledItems, pad, padding_of
from smht.tasks.task import DataRequest, Examples, Item, Metric, Score, Task, TaskData
from smht.tasks.text_files import take_standard_input
from smht.tokenization import BOS_ID, EOS_ID, PAD_ID, encode_document

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast

    from smht.models import SmhtConfig, SmhtForSequenceClassification

_EVALUATION_BATCH = 64
_SHOWN = 5
_SHOWN_LETTERS = 60


@dataclass(frozen=True)
class LabelledData(TaskData):
    """Labelled texts, divided; both parts know all labels."""

    whole: LabelledCorpus
    training: LabelledCorpus
    validation: LabelledCorpus
    piped: bytes | None = None

    @property
    def labels(self) -> tuple[str, ...]:
        """The labels by their numbers."""
        return self.whole.labels

    def manifest(self) -> dict[str, dict[str, Any]]:
        """See `TaskData`."""
        parts = {"text": self.whole, "training": self.training, "validation": self.validation}
        return {name: part.to_manifest() for name, part in parts.items()}

    def describe(self, tokens: int) -> str:
        """See `TaskData`."""
        return (
            f"{self.whole.description}: {len(self.training):,} texts to learn from ({tokens:,} tokens), "
            f"{len(self.validation):,} held out; labels {', '.join(self.labels)}; sha256 {self.whole.sha256[:12]}"
        )

    def texts(self, errors: str) -> list[str]:
        """See `TaskData`."""
        return [example.text for example in self.training.examples]

    def standard_input(self) -> bytes | None:
        """See `TaskData`."""
        return self.piped

    def encode(self, tokenizer: "PreTrainedTokenizerFast", context: int, errors: str) -> "EncodedTexts":
        """See `TaskData`."""
        return EncodedTexts(self.training, self.validation, self.labels, tokenizer, context)

    def config_fields(self) -> dict[str, Any]:
        """The labels' numbers and names."""
        return {
            "id2label": dict(enumerate(self.labels)),
            "label2id": {label: number for number, label in enumerate(self.labels)},
        }


class EncodedTexts(Examples):
    """Texts in tokens, each between a begin and an end token, with the number of its label.

    Args:
        training: what to learn from.
        validation: what to evaluate on.
        labels: by their numbers.
        tokenizer: the model's.
        context: the most tokens of a text; of a longer one the model sees the beginning.

    Raises:
        UsageError: a label in the validation part that is none of `labels`.
    """

    def __init__(
        self,
        training: LabelledCorpus,
        validation: LabelledCorpus,
        labels: Sequence[str],
        tokenizer: "PreTrainedTokenizerFast",
        context: int,
    ) -> None:
        self.labels = tuple(labels)
        self._cut = 0
        self.training = self._encode(training, tokenizer, context)
        self.validation = self._encode(validation, tokenizer, context)
        lengths = [len(item["ids"]) for item in self.training]
        self.items_per_epoch, self.tokens_per_item = len(lengths), sum(lengths) / len(lengths)
        self.validation_items = len(self.validation)
        self.token_counts = sum(lengths), sum(len(item["ids"]) for item in self.validation)
        self.timed_part = min(64, self.validation_items), max(1.0, self.validation_items / 64)
        if self._cut:
            total = len(self.training) + len(self.validation)
            self.note = f"{self._cut:,} of {total:,} texts are longer than {context} tokens: their ends are not read"

    def dataset(self, seed: int, length: int, batch_size: int) -> Dataset[Item]:
        """See `Examples`."""
        return ShuffledItems(self.training, [len(item["ids"]) for item in self.training], seed, length, batch_size)

    def describe_batch(self, batch_size: int) -> str:
        """See `Examples`."""
        return f"{batch_size} texts"

    def collate(self, items: Sequence[Item]) -> dict[str, Any]:
        """Texts padded, labels beside them."""
        return {**collate_texts([item["ids"] for item in items]), "labels": torch.stack([i["label"] for i in items])}

    @torch.inference_mode()
    def score(self, model: nn.Module, limit: int | None = None, is_final: bool = False) -> Score:
        """Nats per text, accuracy and macro-F1 over the held-out texts."""
        items = self.validation[:limit]
        logits = classify(model, [item["ids"] for item in items])
        labels = torch.stack([item["label"] for item in items])
        loss = float(F.cross_entropy(logits, labels))
        return Score(loss, measure(logits.argmax(-1), labels))

    def figures(self, model: Any, new_figure: Any) -> dict[str, Any]:
        """Which labels are taken for which."""
        predicted = classify(model, [item["ids"] for item in self.validation]).argmax(-1)
        labels = torch.stack([item["label"] for item in self.validation])
        size = len(self.labels)
        counts = torch.bincount(labels * size + predicted, minlength=size**2).view(size, size)
        return {"confusion": _confusion(new_figure, counts, self.labels)}

    def _encode(self, corpus: LabelledCorpus, tokenizer: "PreTrainedTokenizerFast", context: int) -> list[Item]:
        numbers = {label: number for number, label in enumerate(self.labels)}
        items = []
        for example in corpus.examples:
            if example.label not in numbers:
                raise UsageError(
                    f"{corpus.description} has the label {example.label!r}, which the training texts do not have"
                )
            ids = encode_text(tokenizer, example.text.encode(), "a text")
            self._cut += len(ids) > context
            items.append({"ids": ids[:context], "label": torch.tensor(numbers[example.label])})
        return items


class Classification(Task):
    """Texts with labels; accuracy and macro-F1."""

    name = "classification"
    stacks = ("encoder", "decoder")
    preset = "smht-classification"
    tokenizer = "bpe"
    vocab_size = 8192
    metrics = (Metric("accuracy", "accuracy", "{:.2%}", "right"), Metric("macro_f1", "macro-F1", "{:.4f}"))
    loss_unit = "nats/text"

    def model_class(self) -> "type[SmhtForSequenceClassification]":
        """See `Task`."""
        from smht.models import SmhtForSequenceClassification

        return SmhtForSequenceClassification

    def read(self, request: DataRequest, stdin: BinaryIO | None = None, is_again: bool = False) -> LabelledData:
        """CSV or JSONL files with `text` and `label`, or `movie-reviews`.

        Raises:
            UsageError: as in `Task`; nothing given, since there is no default.
        """
        if request.dataset:
            raise UsageError("--dataset is for language modelling: give labelled texts as files")
        if not request.sources:
            raise UsageError(f"no labelled texts were given: name CSV or JSONL files, or {MOVIE_REVIEWS}")
        piped = take_standard_input(request.sources, stdin)
        stdin = None if piped is None else io.BytesIO(piped)
        whole = labelled_again(request.sources, stdin=stdin) if is_again else _read(request.sources, stdin)
        if request.validation_sources:
            refuse_one_class(whole)
            return LabelledData(whole, whole, _read(request.validation_sources), piped)
        return LabelledData(whole, *hold_out_labelled(whole, request.validation_fraction), piped)

    def encode_for_evaluation(
        self, sources: Sequence[str], model: "SmhtForSequenceClassification", tokenizer: "PreTrainedTokenizerFast"
    ) -> EncodedTexts:
        """Labelled texts in files, or the movie reviews."""
        corpus = _read(sources)
        names: Any = model.config.id2label
        labels = [names[number] for number in range(model.num_labels)]
        return EncodedTexts(corpus, corpus, labels, tokenizer, model.config.max_position_embeddings)

    def default_batch_size(self, context: int) -> int:
        """See `Task`."""
        return 32

    def default_learning_rate(self, config: "SmhtConfig") -> float:
        """See `Task`."""
        return 3e-3

    def sample(
        self, model: "SmhtForSequenceClassification", tokenizer: "PreTrainedTokenizerFast", data: TaskData
    ) -> str:
        """A few held-out texts with what the model makes of them."""
        assert isinstance(data, LabelledData)
        examples = data.validation.examples[:: max(1, len(data.validation) // _SHOWN)][:_SHOWN]
        context = model.config.max_position_embeddings
        ids = [encode_text(tokenizer, example.text.encode(), "a text")[:context] for example in examples]
        probabilities = classify(model, ids).softmax(-1)
        lines = []
        for example, row in zip(examples, probabilities, strict=True):
            label = data.labels[int(row.argmax())]
            verdict = "" if label == example.label else f" (right: {example.label})"
            text = " ".join(example.text.split())
            text = text if len(text) <= _SHOWN_LETTERS else text[: _SHOWN_LETTERS - 1] + "…"
            lines.append(f"{label} {float(row.max()):.0%}{verdict}: {text}")
        return "\n".join(lines)

    def next_command(self, run: str, data: TaskData) -> str:
        """Let it judge."""
        assert isinstance(data, LabelledData)
        text = " ".join(data.validation.examples[0].text.split()[:6])
        return f"smht predict {shlex.quote(run)} {shlex.quote(text)}"


def _read(sources: Sequence[str], stdin: BinaryIO | None = None) -> LabelledCorpus:
    return movie_reviews() if tuple(sources) == (MOVIE_REVIEWS,) else read_labelled(sources, stdin=stdin)


def encode_text(tokenizer: "PreTrainedTokenizerFast", text: bytes, name: str) -> Tensor:
    """A text in tokens between its begin and its end token, `[T]`.

    Raises:
        UsageError: text that the tokenizer cannot read.
    """
    return torch.tensor([BOS_ID, *(int(i) for i in encode_document(tokenizer, text, source=name)), EOS_ID])


def collate_texts(rows: Sequence[Tensor]) -> dict[str, Tensor]:
    """Texts `[T_i]` as the model's arguments, `[B, T]`."""
    return {"input_ids": pad(rows, PAD_ID), "attention_mask": padding_of(rows)}


@torch.inference_mode()
def classify(model: Any, rows: Sequence[Tensor]) -> Tensor:
    """Logits `[B, labels]` of texts in tokens, on the CPU."""
    was_training = model.training
    model.eval()
    logits: list[Tensor] = [torch.empty(0)] * len(rows)
    order = sorted(range(len(rows)), key=lambda i: -len(rows[i]))
    try:
        for start in range(0, len(order), _EVALUATION_BATCH):
            batch = order[start : start + _EVALUATION_BATCH]
            inputs = {name: x.to(model.device) for name, x in collate_texts([rows[i] for i in batch]).items()}
            for i, row in zip(batch, model(**inputs, use_cache=False).logits.float().cpu(), strict=True):
                logits[i] = row
    finally:
        model.train(was_training)
    return torch.stack(logits)


def measure(predicted: Tensor, labels: Tensor) -> dict[str, float]:
    """scikit-learn's accuracy and macro-F1 of label numbers `[B]`."""
    metrics = _metrics()
    return {
        "accuracy": float(metrics.accuracy_score(labels.tolist(), predicted.tolist())),
        "macro_f1": float(metrics.f1_score(labels.tolist(), predicted.tolist(), average="macro", zero_division=0)),
    }


def _confusion(new_figure: Any, counts: Tensor, labels: Sequence[str]) -> Any:
    """Counts `[label, prediction]` as a picture: shades are parts of a row."""
    side = 2.5 + 0.7 * len(labels)
    figure = new_figure(figsize=(side + 1, side), layout="constrained")
    panel = figure.subplots()
    parts = counts / counts.sum(-1, keepdim=True).clamp_min(1)
    panel.imshow(parts.numpy(), cmap="Blues", vmin=0, vmax=1)
    for row, column in torch.cartesian_prod(torch.arange(len(labels)), torch.arange(len(labels))).tolist():
        colour = "white" if parts[row, column] > 0.5 else "black"
        panel.text(column, row, f"{int(counts[row, column]):,}", ha="center", va="center", color=colour)
    panel.set_xticks(range(len(labels)), labels, rotation=30)
    panel.set_yticks(range(len(labels)), labels)
    panel.set_xlabel("predicted")
    panel.set_ylabel("label")
    return figure


def _metrics() -> Any:
    try:
        import sklearn.metrics
    except ImportError as error:
        raise UsageError(f"macro-F1 needs scikit-learn ({first_line(error)}): pip install 'smht[tasks]'") from None
    return sklearn.metrics
