"""Starting from another run's model and tokenizer."""

from typing import TYPE_CHECKING, Any

from smht.errors import UsageError
from smht.models import SmhtConfig, SmhtPreTrainedModel
from smht.tasks.task import Task, TaskData
from smht.tokenization import tokenizer_kind
from smht.training.request import TrainRequest
from smht.training.run_folder import RunFolder

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast

# Fine-tuning may change how a model is regularised, not what it computes.
_CHANGEABLE_FIELDS = {"hidden_dropout", "attention_dropout"}


def start_from(
    source: RunFolder, request: TrainRequest, task: Task, data: TaskData
) -> tuple[SmhtPreTrainedModel, "PreTrainedTokenizerFast"]:
    """The run's model, with a fresh head where the task needs another, and its tokenizer.

    Raises:
        UsageError: the request asks for another architecture, tokenizer or a longer context, or the run's model
            cannot serve the task.
    """
    source.check_model()
    config, tokenizer = source.load_config(), source.load_tokenizer()
    if request.preset is not None:
        raise UsageError("--from takes its architecture from the run: leave --preset out")
    if config.stack not in task.stacks:
        raise UsageError(
            f"{source.path} holds a model with stack = {config.stack!r}, and {task.name} needs "
            f"{' or '.join(map(repr, task.stacks))}"
        )
    _refuse_changes(source, config, tokenizer, request)
    regularisation = {name: value for name, value in request.architecture.items() if name in _CHANGEABLE_FIELDS}
    changes = {**regularisation, **data.config_fields()}
    return source.load_model(task.model_class(), changes=changes), tokenizer


def _refuse_changes(
    source: RunFolder, config: SmhtConfig, tokenizer: "PreTrainedTokenizerFast", request: TrainRequest
) -> None:
    changed = SmhtConfig(**{**config.to_diff_dict(), **request.architecture})
    compared: dict[str, tuple[Any, Any]] = {
        name: (getattr(config, name), getattr(changed, name)) for name in request.architecture
    }
    kind = tokenizer_kind(tokenizer)
    compared["tokenizer"] = kind, request.tokenizer or kind
    compared["vocab_size"] = config.vocab_size, request.vocab_size or config.vocab_size
    for name, (there, wanted) in compared.items():
        if name not in _CHANGEABLE_FIELDS and wanted != there:
            raise UsageError(f"{source.path} was made with {name} = {there}, which --from cannot change to {wanted}")
    positions = config.max_position_embeddings
    if request.context is not None and request.context > positions:
        raise UsageError(f"{source.path} has {positions} positions, fewer than --context {request.context}")
