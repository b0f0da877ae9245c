"""What a model loses without some of its heads: loss and logits of one batch before and after an edit."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from smht.errors import UsageError
from smht.inspection.display import Displayed, Table, signed
from smht.inspection.edited_heads import edited_heads
from smht.inspection.head_edits import HeadEdit, ModelHeads
from smht.inspection.recording import evaluating
from smht.models import SmhtPreTrainedModel
from smht.models.labels import IGNORED


@dataclass(frozen=True, repr=False)
class AblationResult(Displayed):
    """A run with edited heads beside the unedited one.

    Attributes:
        edits: what was done to the heads.
        descriptions: the same in words.
        parts: what was edited of each head where an edit names no parts, in words.
        statistics: where the norms' means and variances came from: `live`, the edited run, or `held`, the unedited one.
        targets: `[B, T]`, the token that each position has to predict, -100 where none; of a classifier the labels,
            `[B]`; None where there are none.
        logits_before: `[B, T, V]`, of a classifier `[B, V]`.
        logits_after: likewise.
    """

    edits: tuple[HeadEdit, ...]
    descriptions: tuple[str, ...]
    parts: str
    statistics: str
    targets: Tensor | None
    logits_before: Tensor
    logits_after: Tensor

    @property
    def losses_before(self) -> Tensor | None:
        """Cross-entropy of each target in nats, shaped like `targets`; 0 where there is none to predict."""
        return None if self.targets is None else losses_of(self.logits_before, self.targets)

    @property
    def losses_after(self) -> Tensor | None:
        """Likewise, with the edits."""
        return None if self.targets is None else losses_of(self.logits_after, self.targets)

    @property
    def loss_before(self) -> float | None:
        """Mean over the targets, in nats; None where there are none."""
        return _mean(self.losses_before, self.targets)

    @property
    def loss_after(self) -> float | None:
        """Likewise, with the edits."""
        return _mean(self.losses_after, self.targets)

    @property
    def loss_change(self) -> float | None:
        """`loss_after − loss_before`: above 0 where the heads helped."""
        if self.loss_before is None or self.loss_after is None:
            return None
        return self.loss_after - self.loss_before

    @property
    def logit_change(self) -> Tensor:
        """`logits_after − logits_before`."""
        return self.logits_after - self.logits_before

    def tables(self) -> list[Table]:
        """Loss before and after, and how far logits moved; of a classifier the labels of the first text too."""
        change = f"{float(self.logit_change.abs().max()):.4f}"
        rows = [("largest change of a logit", "", "", change)]
        if self.loss_before is not None and self.loss_after is not None and self.loss_change is not None:
            losses = (f"{self.loss_before:.4f}", f"{self.loss_after:.4f}", signed(self.loss_change))
            rows.insert(0, (f"nats, mean of {self.count:,}", *losses))
        caption = "; ".join(self.descriptions) or "no edits"
        summary = Table(("", "before", "after", "change"), tuple(rows), caption, describe(self.statistics, self.parts))
        return [summary, *([self.label_table()] if self.is_of_labels else [])]

    @property
    def is_of_labels(self) -> bool:
        """Whether the logits are a classifier's."""
        return self.logits_before.dim() == 2

    @property
    def count(self) -> int:
        """How many targets the losses are means over."""
        return 0 if self.targets is None else int((self.targets != IGNORED).sum())

    def token_table(self, names: Sequence[str] | None = None) -> Table:
        """The loss of each token of the first text.

        Args:
            names: of the targets that count, in order; their ids if not given.

        Raises:
            UsageError: there are no losses, or not as many names.
        """
        if self.targets is None or self.losses_before is None or self.losses_after is None:
            raise UsageError("there is nothing to predict in this run, so there are no losses token by token")
        targets = torch.atleast_1d(self.targets[0])
        counts = targets != IGNORED
        names = [str(i) for i in targets[counts].tolist()] if names is None else list(names)
        if len(names) != int(counts.sum()):
            raise UsageError(f"there are {int(counts.sum())} targets and {len(names)} names: give a name a target")
        before, after = (torch.atleast_1d(losses[0])[counts] for losses in (self.losses_before, self.losses_after))
        rows = [
            (name, f"{old:.4f}", f"{new:.4f}", signed(new - old))
            for name, old, new in zip(names, before.tolist(), after.tolist(), strict=True)
        ]
        return Table(("token, nats", "before", "after", "change"), tuple(rows))

    def label_table(self, names: Sequence[str] | None = None) -> Table:
        """A classifier's probability of each label, of the first text.

        Args:
            names: of the labels by their numbers; the numbers if not given.

        Raises:
            UsageError: a model that gives no labels, or not as many names.
        """
        if not self.is_of_labels:
            raise UsageError("this model gives tokens probabilities, not labels")
        before, after = (probabilities(logits[0]) for logits in (self.logits_before, self.logits_after))
        names = [str(i) for i in range(len(before))] if names is None else list(names)
        if len(names) != len(before):
            raise UsageError(f"there are {len(before)} labels and {len(names)} names: give a name a label")
        rows = [
            (name, f"{old:.4f}", f"{new:.4f}", signed(new - old))
            for name, old, new in zip(names, before.tolist(), after.tolist(), strict=True)
        ]
        return Table(("label, probability", "before", "after", "change"), tuple(rows))


@torch.no_grad()
def ablate(
    model: SmhtPreTrainedModel,
    edits: Sequence[HeadEdit],
    statistics: str = "live",
    *,
    reference: Mapping[str, Any] | None = None,
    **inputs: Any,
) -> AblationResult:
    """Run `model` without and with `edits` on the same inputs, both on the composed path.

    Args:
        model: any of smht's with a head; put into evaluation mode for the time.
        edits: see `edited_heads`.
        statistics: `live` or `held`, see there.
        reference: inputs of the run whose values `Freeze` holds; `inputs` themselves if not given.
        **inputs: what the model's forward takes. Targets are its `labels`; where there are none, the next tokens of the
            text, or of `decoder_input_ids`. A classifier without labels has no loss.

    Raises:
        UsageError: a model without a head, what `edited_heads` refuses, or what the model refuses.
    """
    heads = heads_with_logits(model)
    given, targets = split_labels(model, inputs)
    with evaluating(model):
        before = logits_of(model, (), "live", None, given)
        after = logits_of(model, edits, statistics, given if reference is None else reference, given)
    descriptions = tuple(heads.describe(edit) for edit in edits)
    return AblationResult(tuple(edits), descriptions, heads.describe_parts(), statistics, targets, before, after)


def describe(statistics: str, parts: str) -> str:
    """What numbers of an edited model mean, in a line."""
    run = {"live": "of the edited run", "held": "of the unedited run"}[statistics]
    return f"norms' statistics {statistics} ({run}); of each head: {parts}"


def heads_with_logits(model: SmhtPreTrainedModel) -> ModelHeads:
    """The model's heads.

    Raises:
        UsageError: a model without a head of its own, whose output is no logits.
    """
    if not hasattr(model, "lm_head") and not hasattr(model, "score"):
        raise UsageError(f"there is no loss to see change: {type(model).__name__} has no head; edited_heads takes it")
    return ModelHeads(model)


def split_labels(model: Any, inputs: Mapping[str, Any]) -> tuple[dict[str, Any], Tensor | None]:
    """What the forward takes without labels, and what each position of the logits has to predict."""
    given = {"use_cache": False, **inputs}
    labels = given.pop("labels", None)
    if hasattr(model, "score"):
        return given, labels
    if model.config.is_encoder_decoder:
        if labels is not None and given.get("decoder_input_ids") is None:
            given["decoder_input_ids"] = model.prepare_decoder_input_ids_from_labels(labels)
        if labels is not None:
            return given, labels
        return given, _next_tokens(given.get("decoder_input_ids"), given.get("decoder_attention_mask"))
    ids = given.get("input_ids") if labels is None else labels
    return given, _next_tokens(ids, given.get("attention_mask"))


def _next_tokens(ids: Tensor | None, mask: Tensor | None) -> Tensor | None:
    """`[B, T]` shifted to the left by one; -100 at the end, and where either of the two tokens is padding."""
    if ids is None:
        return None
    targets = F.pad(ids[:, 1:], (0, 1), value=IGNORED)
    if mask is not None and mask.dim() == 2:
        real = mask != 0
        targets = targets.masked_fill(~(real & F.pad(real[:, 1:], (0, 1))), IGNORED)
    return targets


def logits_of(model: Any, edits: Sequence[HeadEdit], statistics: str, reference: Any, given: dict[str, Any]) -> Tensor:
    """What the edited model gives for these inputs, see `ablate`."""
    with edited_heads(model, edits, statistics, reference):
        return model(**given).logits


def losses_of(logits: Tensor, targets: Tensor) -> Tensor:
    """Cross-entropy of each target in nats, shaped like `targets`; 0 where there is none."""
    logits = logits.to(torch.promote_types(logits.dtype, torch.float32))
    losses = F.cross_entropy(logits.flatten(0, -2), targets.flatten(), reduction="none", ignore_index=IGNORED)
    return losses.view(targets.shape)


def probabilities(logits: Tensor) -> Tensor:
    """Softmax over the last axis, in fp32 or better."""
    return logits.to(torch.promote_types(logits.dtype, torch.float32)).softmax(-1)


def _mean(losses: Tensor | None, targets: Tensor | None) -> float | None:
    if losses is None or targets is None or not (targets != IGNORED).any():
        return None
    return float(losses.sum() / (targets != IGNORED).sum())
