"""The loss of a language model's head without its logits, where nobody can tell the difference.

| condition | why |
|---|---|
| the head is an `nn.Linear` without bias, as wide as the vocabulary | the op's contract |
| nothing is hooked onto it and its `forward` was not replaced | hooks see logits; LoRA and accelerate compute others |
| the loss is transformers' `ForCausalLMLoss` | another one needs the logits |
"""

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers.loss.loss_utils import ForCausalLMLoss

from smht import ops
from smht.layers.fast_path import is_plain_linear
from smht.models.labels import IGNORED


def needs_no_logits(head: nn.Module, vocab_size: int, loss_function: Callable[..., Any]) -> bool:
    """Whether the head's weight and the labels are all that the loss needs."""
    if loss_function is not ForCausalLMLoss or not is_plain_linear(head):
        return False
    assert isinstance(head, nn.Linear)
    return head.bias is None and head.weight.shape[0] == vocab_size


def head_loss(
    hidden_states: Tensor,
    weight: Tensor,
    labels: Tensor,
    *,
    num_items_in_batch: Tensor | int | None = None,
    ignore_index: int = IGNORED,
    shift_labels: Tensor | None = None,
    **_: Any,
) -> Tensor:
    """What `ForCausalLMLoss` makes of `hidden_states · weightᵀ`.

    Args:
        hidden_states: `[B, T, D]`.
        weight: `[V, D]`.
        labels: `[B, T]`, shifted here: position `t` is scored against label `t + 1`.
        num_items_in_batch: what the sum is divided by; the number of labels that count if not given.
        ignore_index: the label of tokens that do not count.
        shift_labels: `[B, T]`, labels that are already shifted, in place of `labels`.
        **_: what concerns attention.

    Returns:
        A number, float32 as there.
    """
    if shift_labels is None:
        shift_labels = F.pad(labels, (0, 1), value=ignore_index)[..., 1:]
    shift_labels = shift_labels.to(hidden_states.device)
    # Flat, as transformers takes them: in any shape with as many labels.
    total = ops.linear_cross_entropy(hidden_states.flatten(0, -2), weight, shift_labels.reshape(-1), ignore_index)
    divisor = (shift_labels != ignore_index).sum() if num_items_in_batch is None else num_items_in_batch
    return total.float() / (divisor.to(total.device) if torch.is_tensor(divisor) else divisor)
