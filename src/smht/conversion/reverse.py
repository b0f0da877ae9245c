"""From a split run to a dense one that computes the same, for training on with full matrices."""

from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from smht.conversion.models import to_dense
from smht.conversion.source import Source, write_converted
from smht.errors import SmhtError, UsageError
from smht.models import SmhtPreTrainedModel
from smht.training.run_folder import RunFolder

_TOKENS = 64
_ROUNDING = 1e-3
"""Of the largest logit; what is more is no rounding in single precision."""


@dataclass(frozen=True)
class Reversed:
    """A dense run.

    Attributes:
        run: its folder.
        parameters: of the split model and of the dense one.
        difference: the largest of logits between the two over some random tokens, as a part of the largest logit.
    """

    run: Path
    parameters: tuple[int, int]
    difference: float


def make_dense(path: Path, output: Path) -> Reversed:
    """Write the dense run of a split one.

    Args:
        path: the split run's folder.
        output: a folder that is empty or not there yet.

    Raises:
        UsageError: the run is dense already or has no dense equal, is damaged, or the output folder is taken.
        SmhtError: the disk is full, or the models differ by more than rounding.
    """
    RunFolder(output).refuse_if_taken()
    source = Source.read(path)
    try:
        dense = to_dense(source.model)
    except UsageError as error:
        raise UsageError(f"{path}: {error}") from None
    difference = largest_difference(source.model, dense)
    if difference > _ROUNDING:
        raise SmhtError(
            f"the dense model differs from {path} by {difference:.2g} of its logits: report this as a fault"
        )
    parameters = source.model.num_parameters(), dense.num_parameters()
    write_converted(source, output, dense, {"conversion": {"source": str(path), "to": "dense"}})
    return Reversed(output, parameters, difference)


def largest_difference(first: SmhtPreTrainedModel, second: SmhtPreTrainedModel) -> float:
    """Of two models' logits over the same random tokens, as a part of the first's largest logit."""
    ours, theirs = (_logits(model) for model in (first, second))
    return float((ours - theirs).abs().max() / ours.abs().max().clamp_min(1e-30))


@torch.no_grad()
def _logits(model: SmhtPreTrainedModel) -> Tensor:
    config = model.config
    tokens = min(_TOKENS, config.max_position_embeddings)
    ids = torch.randint(config.vocab_size, (2, tokens), generator=torch.Generator().manual_seed(0))
    target = {"decoder_input_ids": ids.flip(1)} if config.is_encoder_decoder else {}
    mask = torch.ones_like(ids)  # random tokens may be padding by their number alone
    return model.eval()(input_ids=ids, attention_mask=mask, **target).logits
