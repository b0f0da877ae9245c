"""What models are scored against."""

import torch
from torch import Tensor

from smht.errors import UsageError

IGNORED = -100
"""The label of a token that nobody has to predict."""


def check_labels(scored: Tensor, or_else: str | None = None) -> None:
    """Refuse labels that leave nothing to learn.

    Args:
        scored: the labels that count, any shape.
        or_else: another reason why a label does not count.

    Raises:
        UsageError: all of them are -100.
    """
    # Elsewhere than on a CPU the check would wait for the device; there the loss is NaN.
    if scored.device.type == "cpu" and not torch.compiler.is_compiling() and not (scored != IGNORED).any():
        reason = f"is {IGNORED}" + (f" or {or_else}" if or_else else "")
        raise UsageError(f"every label {reason}, so there is nothing to learn from")


def refuse_left_padding(labels: Tensor) -> None:
    """Refuse targets padded on the left: a decoder would read the padding, which it never does when it writes.

    Raises:
        UsageError: a row begins with -100 and goes on with a label.
    """
    if labels.device.type != "cpu" or torch.compiler.is_compiling() or not labels.numel():
        return
    counts = labels != IGNORED
    if (~counts[..., 0] & counts.any(-1)).any():
        raise UsageError(f"labels of an encoder_decoder are padded on the right; a row of these begins with {IGNORED}")


def shift_right(labels: Tensor, start_token_id: int, pad_token_id: int | None) -> Tensor:
    """The target as a decoder reads it: the start token, then each label but the last; padding where labels are -100.

    Args:
        labels: `[B, T]`.
        start_token_id: what the output begins with.
        pad_token_id: in place of -100; the start token if there is none.
    """
    shifted = labels.roll(1, dims=-1)
    shifted[..., 0] = start_token_id
    return shifted.masked_fill(shifted == IGNORED, start_token_id if pad_token_id is None else pad_token_id)
