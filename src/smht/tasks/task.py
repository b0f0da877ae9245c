"""What a task is: its data, its model, its metric. Training and the command line know tasks by this alone."""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, BinaryIO, ClassVar

from torch import Tensor, nn
from torch.utils.data import Dataset

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast

    from smht.models import SmhtConfig, SmhtPreTrainedModel

Item = dict[str, Tensor]
"""One example, ready for `Examples.collate`."""


@dataclass(frozen=True)
class DataRequest:
    """What data to read.

    Attributes:
        sources: files, folders, globs, `-`, or names that the task knows; none for its default.
        dataset: a Hugging Face dataset in their place, where the task takes one.
        validation_sources: data to validate on; if none, a part is held out.
        validation_fraction: how much is held out.
        errors: `strict`, or `replace` for bytes that are not UTF-8.
    """

    sources: tuple[str, ...] = ()
    dataset: str | None = None
    validation_sources: tuple[str, ...] = ()
    validation_fraction: float = 0.1
    errors: str = "strict"


@dataclass(frozen=True)
class Metric:
    """How well a model does, besides its loss.

    Attributes:
        name: its key in metrics and results.
        label: what it is called in tables.
        template: how a value is written, such as `{:.4f}`.
        unit: after the value in a line.
        is_final: whether it takes so long that it is measured at the end only, of the best model.
    """

    name: str
    label: str
    template: str
    unit: str = ""
    is_final: bool = False

    def format(self, value: float) -> str:
        """The value for a person."""
        return f"{self.template.format(value)}{' ' + self.unit if self.unit else ''}"


@dataclass(frozen=True)
class Score:
    """What a model makes of validation data.

    Attributes:
        loss: mean cross-entropy in nats.
        metrics: values by `Metric.name`.
    """

    loss: float
    metrics: Mapping[str, float] = field(default_factory=dict)


class Examples(ABC):
    """Data in tokens: training items in an order that depends on the seed alone, and a score on the validation part.

    Attributes:
        items_per_epoch: training items in one pass.
        tokens_per_item: tokens of one, on average.
        validation_items: how many there are.
        token_counts: tokens of the training and of the validation part.
        timed_part: how many validation items to time a score by, and what to multiply that time with.
        note: what to tell the user about the data, such as how many texts are cut; empty if nothing.
    """

    items_per_epoch: int
    tokens_per_item: float
    validation_items: int
    token_counts: tuple[int, int]
    timed_part: tuple[int, float]
    note: str = ""

    @abstractmethod
    def dataset(self, seed: int, length: int, batch_size: int) -> Dataset[Item]:
        """`length` training items; item `i` is the same whenever and however often it is asked for."""

    @abstractmethod
    def describe_batch(self, batch_size: int) -> str:
        """What a step looks at, for a person: `64 pairs`."""

    @abstractmethod
    def collate(self, items: Sequence[Item]) -> dict[str, Any]:
        """A batch, as the model's arguments."""

    @abstractmethod
    def score(self, model: nn.Module, limit: int | None = None, is_final: bool = False) -> Score:
        """The score over the validation part, or over `limit` of its items.

        Args:
            model: put into evaluation mode for the time.
            limit: to time a part, or to look at one on the way.
            is_final: whether metrics that take long are worth their time.
        """

    def figures(self, model: Any, new_figure: Any) -> dict[str, Any]:
        """Pictures of what the model does with the validation part, by name.

        Args:
            model: a trained one.
            new_figure: matplotlib's `Figure`.
        """
        return {}


class TaskData(ABC):
    """Data as it was read, divided into a training and a validation part."""

    @abstractmethod
    def manifest(self) -> dict[str, dict[str, Any]]:
        """What a run records: `text`, `training` and `validation`, each with `description`, `sources`, `sha256`."""

    @abstractmethod
    def describe(self, tokens: int) -> str:
        """What there is to learn from, for a person; `tokens` is how many tokens that makes."""

    @abstractmethod
    def texts(self, errors: str) -> list[str]:
        """The training texts, for a tokenizer that learns from them.

        Raises:
            UsageError: text that is not UTF-8; the message says where.
        """

    @abstractmethod
    def encode(self, tokenizer: "PreTrainedTokenizerFast", context: int, errors: str) -> Examples:
        """The data in tokens, at most `context` a text or window.

        Raises:
            UsageError: text that the tokenizer cannot read, or that does not fit.
        """

    def config_fields(self) -> dict[str, Any]:
        """Fields of the model's configuration that follow from the data."""
        return {}

    def standard_input(self) -> bytes | None:
        """What was read from standard input, which cannot be read again."""
        return None


class Task(ABC):
    """A task.

    Attributes:
        name: how the user asks for it.
        stacks: the values of `config.stack` that serve it, the default first.
        preset: the default architecture.
        tokenizer: the default kind.
        vocab_size: the most tokens of the default tokenizer; its own default if None.
        metrics: the first is the one that runs are compared by.
        loss_unit: what the loss is in.
    """

    name: ClassVar[str]
    stacks: ClassVar[tuple[str, ...]]
    preset: ClassVar[str]
    tokenizer: ClassVar[str]
    vocab_size: ClassVar[int | None] = None
    metrics: ClassVar[tuple[Metric, ...]]
    loss_unit: ClassVar[str]

    @abstractmethod
    def model_class(self) -> "type[SmhtPreTrainedModel]":
        """The class of the task's models."""

    @abstractmethod
    def read(self, request: DataRequest, stdin: BinaryIO | None = None, is_again: bool = False) -> TaskData:
        """Read and divide the data.

        Args:
            request: what to read.
            stdin: what `-` reads; the process's standard input if not given.
            is_again: whether `request.sources` are those of a manifest.

        Raises:
            UsageError: data that is missing, malformed or too little.
        """

    @abstractmethod
    def default_batch_size(self, context: int) -> int:
        """Items a step."""

    @abstractmethod
    def default_learning_rate(self, config: "SmhtConfig") -> float:
        """The peak."""

    @abstractmethod
    def encode_for_evaluation(
        self, sources: Sequence[str], model: Any, tokenizer: "PreTrainedTokenizerFast"
    ) -> Examples:
        """Data from outside a run as the validation part of examples.

        Raises:
            UsageError: data that is missing or malformed, or that the model cannot be measured on.
        """

    @abstractmethod
    def sample(self, model: Any, tokenizer: "PreTrainedTokenizerFast", data: TaskData) -> str:
        """What a trained model does, for a person to look at."""

    @abstractmethod
    def next_command(self, run: str, data: TaskData) -> str:
        """What to type next: `smht ...`."""
