"""From what was asked to what can be trained: text, tokenizer, model, settings. Writes nothing."""

import io
from collections.abc import Sequence
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from transformers import set_seed
from transformers.utils import logging as transformers_logging

from smht.errors import UsageError
from smht.models import SmhtConfig, SmhtForCausalLM, preset_config
from smht.tasks.corpus import Corpus
from smht.tasks.hold_out import hold_out
from smht.tasks.hub import HUB_PREFIX
from smht.tasks.language_modelling import TokenStream, TrainingWindows, count_windows, tokenize
from smht.tasks.sources import read_again
from smht.tasks.text_files import STANDARD_INPUT, read_texts, standard_library
from smht.tokenization import build_tokenizer, decode_document, tokenizer_kind
from smht.training.device import resolve_device
from smht.training.memory import refuse_if_too_large
from smht.training.request import TrainRequest
from smht.training.run_folder import RunFolder

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast

DEFAULT_PRESET = "smht-small"
DEFAULT_TOKENIZER = "bpe"
STANDARD_INPUT_COPY = "standard-input.txt"

# Fine-tuning may change how a model is regularised, not what it computes.
_CHANGEABLE_FIELDS = {"hidden_dropout", "attention_dropout"}


@dataclass(frozen=True)
class Settings:
    """What a run does, down to the last number; a resumed run reads it from `run.json`."""

    context: int
    batch_size: int
    learning_rate: float
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
class Texts:
    """The text of a run, read and divided."""

    whole: Corpus
    training: Corpus
    validation: Corpus


@dataclass(frozen=True)
class Prepared:
    """All that a training loop needs."""

    model: SmhtForCausalLM
    tokenizer: "PreTrainedTokenizerFast"
    texts: Texts
    training: TokenStream
    validation: TokenStream
    settings: Settings

    @property
    def windows_per_epoch(self) -> int:
        """Windows in one pass over the training text."""
        return count_windows(self.training, self.settings.context)

    def windows(self, steps: int) -> TrainingWindows:
        """The training windows of `steps` steps."""
        settings = self.settings
        return TrainingWindows(self.training, settings.context, settings.seed, steps * settings.batch_size)


def prepare(request: TrainRequest) -> Prepared:
    """Read the text, make or load tokenizer and model, fill in what was not asked for.

    Raises:
        UsageError: anything that cannot be trained as asked, in one line.
        ValueError: what `SmhtConfig` refuses.
    """
    transformers_logging.disable_progress_bar()
    source = RunFolder(request.from_run) if request.from_run else None
    device = resolve_device(request.device)
    config = None if source else _configuration(request)
    texts = _read(request)
    if source is not None:
        model, tokenizer = _start_from(source, request)
        config = model.config
    else:
        assert config is not None
        tokenizer = _make_tokenizer(request, texts.training)
        config, model = _fit_to_tokenizer(config, tokenizer), None
    settings = _settings(request, config, device, texts)
    refuse_if_too_large(config, settings.batch_size, settings.context, device)
    if model is None:
        set_seed(request.seed)
        model = SmhtForCausalLM(config)
    return _tokenize(model, tokenizer, texts, settings)


def prepare_again(run: RunFolder, record: dict[str, Any]) -> Prepared:
    """The same for a run that goes on: everything as it was, the text checked against its hash.

    Raises:
        UsageError: the text is gone or has changed, or the run folder is damaged.
    """
    transformers_logging.disable_progress_bar()
    settings = Settings.from_dict(record["settings"])
    settings = replace(settings, device=resolve_device(settings.device))
    stdin_copy = run.path / STANDARD_INPUT_COPY
    stdin = io.BytesIO(stdin_copy.read_bytes()) if stdin_copy.exists() else None
    whole = read_again(record["data"]["text"]["sources"], stdin=stdin)
    if whole.sha256 != record["data"]["text"]["sha256"]:
        raise UsageError(
            f"the text of {run.path} has changed since the run began ({whole.description}): "
            f"restore it, or begin a new run with --from {run.path}"
        )
    texts = _divide(whole, settings.validation_sources, settings.validation_fraction)
    if texts.validation.sha256 != record["data"]["validation"]["sha256"]:
        raise UsageError(f"the validation text of {run.path} has changed since the run began: restore it")
    config = run.load_config()
    tokenizer = run.load_tokenizer()
    set_seed(settings.seed)
    return _tokenize(SmhtForCausalLM(config), tokenizer, texts, settings)


def _tokenize(
    model: SmhtForCausalLM, tokenizer: "PreTrainedTokenizerFast", texts: Texts, settings: Settings
) -> Prepared:
    training = tokenize(tokenizer, texts.training, settings.errors)
    validation = tokenize(tokenizer, texts.validation, settings.errors)
    count_windows(training, settings.context)
    return Prepared(model, tokenizer, texts, training, validation, settings)


def _read(request: TrainRequest) -> Texts:
    if request.dataset:
        whole = read_again((HUB_PREFIX + request.dataset,))
    elif request.texts:
        whole = read_texts(request.texts)
    else:
        whole = standard_library()
    return _divide(whole, request.validation_texts, request.validation_fraction)


def _divide(whole: Corpus, validation_sources: Sequence[str], fraction: float) -> Texts:
    if validation_sources:
        return Texts(whole, whole, read_texts(validation_sources))
    return Texts(whole, *hold_out(whole, fraction=fraction))


def _make_tokenizer(request: TrainRequest, training: Corpus) -> "PreTrainedTokenizerFast":
    kind = request.tokenizer or DEFAULT_TOKENIZER
    return build_tokenizer(kind, _decoded(training, kind, request.errors), request.vocab_size)


def _decoded(corpus: Corpus, kind: str, errors: str) -> list[str] | None:
    """The text for a tokenizer that learns from it; where it is not UTF-8, the error names the place."""
    if kind == "byte":
        return None
    return [decode_document(document.data, source=document.name, errors=errors) for document in corpus.documents]


def _configuration(request: TrainRequest) -> SmhtConfig:
    """The architecture asked for; the vocabulary follows later."""
    changes = dict(request.architecture)
    if request.context is not None:
        changes["max_position_embeddings"] = request.context
    return preset_config(request.preset or DEFAULT_PRESET, **changes)


def _fit_to_tokenizer(config: SmhtConfig, tokenizer: "PreTrainedTokenizerFast") -> SmhtConfig:
    return SmhtConfig(
        **{
            **config.to_diff_dict(),
            "vocab_size": len(tokenizer),
            "bos_token_id": tokenizer.bos_token_id,
            "eos_token_id": tokenizer.eos_token_id,
            "pad_token_id": tokenizer.pad_token_id,
        }
    )


def _start_from(source: RunFolder, request: TrainRequest) -> tuple[SmhtForCausalLM, "PreTrainedTokenizerFast"]:
    """Another run's model and tokenizer.

    Raises:
        UsageError: the request asks for another architecture, tokenizer or a longer context.
    """
    model, tokenizer = source.load_model(), source.load_tokenizer()
    if request.preset is not None:
        raise UsageError("--from takes its architecture from the run: leave --preset out")
    config, changed = model.config, SmhtConfig(**{**model.config.to_diff_dict(), **request.architecture})
    compared = {name: (getattr(config, name), getattr(changed, name)) for name in request.architecture}
    kind = tokenizer_kind(tokenizer)
    compared["tokenizer"] = kind, request.tokenizer or kind
    compared["vocab_size"] = config.vocab_size, request.vocab_size or config.vocab_size
    for name, (there, wanted) in compared.items():
        if name not in _CHANGEABLE_FIELDS and wanted != there:
            raise UsageError(f"{source.path} was made with {name} = {there}, which --from cannot change to {wanted}")
    positions = config.max_position_embeddings
    if request.context is not None and request.context > positions:
        raise UsageError(f"{source.path} has {positions} positions, fewer than --context {request.context}")
    if any(name in _CHANGEABLE_FIELDS for name in request.architecture):
        regularised = SmhtForCausalLM(changed)
        regularised.load_state_dict(model.state_dict())
        model = regularised
    return model, tokenizer


def _settings(request: TrainRequest, config: SmhtConfig, device: str, texts: Texts) -> Settings:
    context = request.context or config.max_position_embeddings
    return Settings(
        context=context,
        batch_size=request.batch_size or default_batch_size(context),
        learning_rate=request.learning_rate or default_learning_rate(config),
        warmup=request.warmup,
        weight_decay=request.weight_decay,
        dtype=request.dtype or ("bfloat16" if device == "cuda" else "float32"),
        device=device,
        seed=request.seed,
        evaluate_every=request.evaluate_every,
        keep_checkpoints=request.keep_checkpoints,
        errors=request.errors,
        validation_sources=texts.validation.sources if request.validation_texts else (),
        validation_fraction=request.validation_fraction,
    )


def default_batch_size(context: int) -> int:
    """About 2,048 tokens a step; half as many learned as much in the same time (docs/log.md)."""
    return max(1, round(2048 / context))


def default_learning_rate(config: SmhtConfig) -> float:
    """The rate that did best at width 256: a split model bears a higher one than a dense one."""
    return 8e-3 if config.split else 3e-3


def copy_standard_input(texts: Texts, folder: Path) -> None:
    """Keep text that came from standard input, which cannot be read again."""
    for document in texts.whole.documents:
        if document.name == STANDARD_INPUT:
            (folder / STANDARD_INPUT_COPY).write_bytes(document.data)
