"""From what was asked to what can be trained: data, tokenizer, model, settings. Writes nothing."""

import io
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from transformers import set_seed
from transformers.utils import logging as transformers_logging

from smht.errors import UsageError
from smht.models import SmhtConfig, SmhtPreTrainedModel, preset_config
from smht.tasks.table import find_task
from smht.tasks.task import DataRequest, Examples, Task, TaskData
from smht.tokenization import build_tokenizer
from smht.training.device import resolve_device
from smht.training.fine_tuning import start_from
from smht.training.memory import refuse_if_too_large
from smht.training.parametrisation import check_parametrisation, default_learning_rate, initialise
from smht.training.request import TrainRequest
from smht.training.run_folder import RunFolder

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast

STANDARD_INPUT_COPY = "standard-input.txt"


@dataclass(frozen=True)
class Settings:
    """What a run does, down to the last number; a resumed run reads it from `run.json`."""

    context: int
    batch_size: int
    learning_rate: float
    parametrisation: str
    warmup: int | None
    weight_decay: float
    dtype: str
    device: str
    seed: int
    evaluate_every: int | None
    keep_checkpoints: int
    errors: str
    validation_sources: tuple[str, ...]
    validation_fraction: float
    steps: int = 0

    def to_dict(self) -> dict[str, Any]:
        """Ready for JSON."""
        return asdict(self)

    @classmethod
    def from_dict(cls, values: dict[str, Any]) -> "Settings":
        """The settings that `to_dict` gave.

        Raises:
            UsageError: a setting is missing, or one is there that this version does not know.
        """
        names = {field.name for field in fields(cls)}
        if set(values) != names:
            wrong = sorted(names ^ set(values))[0]
            raise UsageError(f"run.json is of another version of smht: its settings differ in {wrong!r}")
        return cls(**{**values, "validation_sources": tuple(values["validation_sources"])})


@dataclass(frozen=True)
class Prepared:
    """All that a training loop needs."""

    task: Task
    model: SmhtPreTrainedModel
    tokenizer: "PreTrainedTokenizerFast"
    data: TaskData
    examples: Examples
    settings: Settings


def prepare(request: TrainRequest) -> Prepared:
    """Read the data, make or load tokenizer and model, fill in what was not asked for.

    Raises:
        UsageError: anything that cannot be trained as asked, in one line.
        ValueError: what `SmhtConfig` refuses.
    """
    transformers_logging.disable_progress_bar()
    task = find_task(request.task)
    source = RunFolder(request.from_run) if request.from_run else None
    device = resolve_device(request.device)
    config = None if source else configuration(request, task)
    data = task.read(data_request(request))
    if source is not None:
        model, tokenizer = start_from(source, request, task, data)
        config = model.config
    else:
        assert config is not None
        tokenizer = make_tokenizer(request, task, data)
        config, model = fit_to_data(config, tokenizer, data), None
        if config.is_encoder_decoder:
            tokenizer.padding_side = "right"  # collators pad targets on the same side as sources
    tokenizer.model_max_length = config.max_position_embeddings  # what transformers' pipelines cut texts at
    settings = _settings(request, config, device, task, data)
    refuse_if_too_large(config, settings.batch_size, settings.context, device)
    if model is None:
        set_seed(request.seed)
        model = task.model_class()(config)
        initialise(model, request.parametrisation)
    examples = data.encode(tokenizer, settings.context, settings.errors)
    return Prepared(task, model, tokenizer, data, examples, settings)


def prepare_again(run: RunFolder, record: dict[str, Any]) -> Prepared:
    """The same for a run that goes on: everything as it was, the data checked against its hash.

    Raises:
        UsageError: the data is gone or has changed, or the run folder is damaged.
    """
    transformers_logging.disable_progress_bar()
    task = find_task(record["task"])
    settings = Settings.from_dict(record["settings"])
    settings = replace(settings, device=resolve_device(settings.device))
    data = _read_again(run, record, task, settings)
    config = run.load_config()
    tokenizer = run.load_tokenizer()
    set_seed(settings.seed)
    model = task.model_class()(config)
    examples = data.encode(tokenizer, settings.context, settings.errors)
    return Prepared(task, model, tokenizer, data, examples, settings)


def _read_again(run: RunFolder, record: dict[str, Any], task: Task, settings: Settings) -> TaskData:
    copy = run.path / STANDARD_INPUT_COPY
    request = DataRequest(
        sources=tuple(record["data"]["text"]["sources"]),
        validation_sources=settings.validation_sources,
        validation_fraction=settings.validation_fraction,
        errors=settings.errors,
    )
    data = task.read(request, stdin=io.BytesIO(copy.read_bytes()) if copy.exists() else None, is_again=True)
    manifest = data.manifest()
    if manifest["text"]["sha256"] != record["data"]["text"]["sha256"]:
        raise UsageError(
            f"the text of {run.path} has changed since the run began ({manifest['text']['description']}): "
            f"restore it, or begin a new run with --from {run.path}"
        )
    if manifest["validation"]["sha256"] != record["data"]["validation"]["sha256"]:
        raise UsageError(f"the validation text of {run.path} has changed since the run began: restore it")
    return data


def data_request(request: TrainRequest) -> DataRequest:
    """What data to read."""
    return DataRequest(
        sources=request.texts,
        dataset=request.dataset,
        validation_sources=request.validation_texts,
        validation_fraction=request.validation_fraction,
        errors=request.errors,
    )


def make_tokenizer(request: TrainRequest, task: Task, data: TaskData) -> "PreTrainedTokenizerFast":
    """The tokenizer asked for, learned from the training part.

    Raises:
        UsageError: text that it cannot read, or a vocabulary of another size than it can have.
    """
    kind = request.tokenizer or task.tokenizer
    vocab_size = request.vocab_size or (task.vocab_size if kind == task.tokenizer else None)
    return build_tokenizer(kind, None if kind == "byte" else data.texts(request.errors), vocab_size)


def configuration(request: TrainRequest, task: Task) -> SmhtConfig:
    """The architecture asked for; what depends on the data follows later.

    Raises:
        UsageError: it makes no model, or none for the task.
    """
    changes = {"stack": task.stacks[0], **request.architecture}
    if changes["stack"] not in task.stacks:
        raise UsageError(f"stack = {changes['stack']!r} does not serve {task.name}: {' or '.join(task.stacks)} does")
    if request.context is not None:
        changes["max_position_embeddings"] = request.context
    config = preset_config(request.preset or task.preset, **changes)
    check_parametrisation(request.parametrisation, config)
    return config


def fit_to_data(config: SmhtConfig, tokenizer: "PreTrainedTokenizerFast", data: TaskData) -> SmhtConfig:
    """The architecture with what follows from the data: its vocabulary, special tokens, labels."""
    return SmhtConfig(
        **{
            **config.to_diff_dict(),
            "vocab_size": len(tokenizer),
            "bos_token_id": tokenizer.bos_token_id,
            "eos_token_id": tokenizer.eos_token_id,
            "pad_token_id": tokenizer.pad_token_id,
            **data.config_fields(),
        }
    )


def _settings(request: TrainRequest, config: SmhtConfig, device: str, task: Task, data: TaskData) -> Settings:
    context = request.context or config.max_position_embeddings
    return Settings(
        context=context,
        batch_size=request.batch_size or task.default_batch_size(context),
        learning_rate=request.learning_rate or default_learning_rate(task, config, request.parametrisation),
        parametrisation=request.parametrisation,
        warmup=request.warmup,
        weight_decay=request.weight_decay,
        dtype=request.dtype or ("bfloat16" if device == "cuda" else "float32"),
        device=device,
        seed=request.seed,
        evaluate_every=request.evaluate_every,
        keep_checkpoints=request.keep_checkpoints,
        errors=request.errors,
        validation_sources=tuple(data.manifest()["validation"]["sources"]) if request.validation_texts else (),
        validation_fraction=request.validation_fraction,
    )


def copy_standard_input(data: TaskData, folder: Path) -> None:
    """Keep what came from standard input, which cannot be read again."""
    read = data.standard_input()
    if read is not None:
        (folder / STANDARD_INPUT_COPY).write_bytes(read)
