"""A trained model on windows of other lengths than it was trained on: what its position encoding is good for."""

from collections.abc import Sequence
from typing import Any

import torch

from smht.errors import UsageError
from smht.models import SmhtConfig, SmhtForCausalLM
from smht.tasks.language_modelling import WindowedText
from smht.tasks.token_stream import evaluate

MULTIPLES = (0.5, 1.0, 2.0, 4.0)
"""Of the context, where nothing else is asked for."""
MOST_MULTIPLE = 64.0


def parse_multiples(text: str) -> tuple[float, ...]:
    """`0.5,1,2` as numbers; `none` as none.

    Raises:
        UsageError: what is no number above 0, or too large.
    """
    if text.strip() == "none":
        return ()
    try:
        multiples = tuple(float(part) for part in text.split(","))
    except ValueError:
        multiples = (0.0,)
    if not all(0 < multiple <= MOST_MULTIPLE for multiple in multiples):
        raise UsageError(
            f"lengths = {text}: give multiples of the context above 0 and up to {MOST_MULTIPLE:g}, such as 0.5,1,2,4, "
            "or none"
        )
    return multiples


def to_tokens(multiples: Sequence[float], context: int) -> tuple[int, ...]:
    """Lengths in tokens, at least 2, in rising order."""
    return tuple(sorted({max(2, round(multiple * context)) for multiple in multiples}))


def evaluate_lengths(model: SmhtForCausalLM, examples: WindowedText, lengths: Sequence[int]) -> list[dict[str, Any]]:
    """The loss over everything held out, in windows of each length, every token predicted once.

    Args:
        model: a trained one; it is left as it is.
        examples: the text.
        lengths: in tokens.

    Returns:
        `length`, `validation_loss` (nats), `bits_per_byte`, and `why_not` where there is no loss, a dictionary each.
    """
    points = []
    for length in lengths:
        why_not = _why_not(model.config, examples, length)
        point: dict[str, Any] = {"length": length, "validation_loss": None, "bits_per_byte": None, "why_not": why_not}
        if why_not is None:
            result = evaluate(_lengthened(model, length), examples.validation, length)
            point |= {"validation_loss": result.loss, "bits_per_byte": result.bits_per_byte}
        points.append(point)
    return points


def _why_not(config: SmhtConfig, examples: WindowedText, length: int) -> str | None:
    longest = config.max_position_embeddings
    if config.position_embedding == "learned" and length > longest:
        return f"learned positions end at {longest}"
    if len(examples.validation) - 1 < length:
        return f"the held-out text has {len(examples.validation):,} tokens"
    return None


def _lengthened(model: SmhtForCausalLM, length: int) -> SmhtForCausalLM:
    """The model, or one of the same weights with more positions, which but for learned ones are computed."""
    config = model.config
    if length <= config.max_position_embeddings:
        return model
    fields = {name: value for name, value in config.to_diff_dict().items() if name != "transformers_version"}
    with torch.random.fork_rng(devices=[]):
        longer: Any = SmhtForCausalLM(SmhtConfig(**{**fields, "max_position_embeddings": length}))
    longer.load_state_dict(model.state_dict())
    return longer.to(model.device)
