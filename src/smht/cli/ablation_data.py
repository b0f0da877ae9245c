"""What `smht ablate` gives a model to read: one text with what it is measured by, or many from files."""

from collections.abc import Sequence
from typing import Any

from smht.cli.output import progress_console
from smht.cli.reading import text_windows
from smht.errors import UsageError, did_you_mean


def one_text(model: Any, tokenizer: Any, text: str, target: str | None, label: str | None) -> dict[str, Any]:
    """A text as the forward takes it; with `labels` where a target or a label is given.

    Raises:
        UsageError: a text that cannot be read, a target or label that the model has no use for, or an encoder-decoder
            without a target.
    """
    import torch

    from smht.tasks.model_inputs import model_inputs
    from smht.tokenization import EOS_ID

    inputs = model_inputs(model, tokenizer, text, target)
    if label is not None:
        inputs["labels"] = torch.tensor([_number(model, label)])
    elif target:
        written = inputs["decoder_input_ids"]
        inputs["labels"] = torch.cat([written[:, 1:], torch.full_like(written[:, :1], EOS_ID)], 1)
    elif model.config.is_encoder_decoder:
        raise UsageError("give a --target: the loss of an encoder-decoder is that of what it should write")
    return inputs


def many_texts(task: str, model: Any, tokenizer: Any, sources: Sequence[str], most: int) -> list[dict[str, Any]]:
    """Windows of files, or labelled texts or pairs as `smht evaluate` takes them, one by one.

    Windows of a language model share a token, so that every token but the first is predicted once.

    Raises:
        UsageError: data that is missing or malformed.
    """
    if task == "language-modelling":
        return [_predicting_text(ids) for ids in text_windows(model, tokenizer, sources, most, shared=1)]
    from smht.tasks.table import find_task

    examples: Any = find_task(task).encode_for_evaluation(sources, model, tokenizer)
    if examples.note:
        progress_console().print(examples.note, highlight=False)
    return [examples.collate([item]) for item in examples.validation[:most]]


def label_names(model: Any) -> list[str]:
    """A classifier's labels by their numbers."""
    return [str(model.config.id2label[number]) for number in range(model.config.num_labels)]


def _predicting_text(ids: Any) -> dict[str, Any]:
    """Begin and end tokens are no text and do not count, as in `smht evaluate`."""
    from smht.models.labels import IGNORED
    from smht.tokenization import BOS_ID, EOS_ID

    return {"input_ids": ids, "labels": ids.masked_fill((ids == BOS_ID) | (ids == EOS_ID), IGNORED)}


def _number(model: Any, label: str) -> int:
    if not hasattr(model, "score"):
        raise UsageError("--label is for runs of a classifier")
    names = label_names(model)
    if label not in names:
        raise UsageError(f"there is no label {label!r}: {did_you_mean(label, names)}")
    return names.index(label)
