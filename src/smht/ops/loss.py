"""The contract of the loss of a language model's head: what goes in, what comes out, what is refused.

Axis letters: `D` hidden size, `V` vocabulary.
"""

import torch
from torch import Tensor

from smht.errors import UsageError
from smht.ops.backend import run


def linear_cross_entropy(hidden: Tensor, weight: Tensor, labels: Tensor, ignore_index: int = -100) -> Tensor:
    """Total surprise of labels under a linear head, `-Σ ln softmax(hidden · weightᵀ)[label]`, in nats.

    The same as `F.linear`, a conversion to float32 at least, and `F.cross_entropy(..., reduction="sum")`. A kernel
    keeps no logits: it takes memory for those of one block of tokens.

    Args:
        hidden: `[..., D]`.
        weight: `[V, D]`, as in `nn.Linear` and `nn.Embedding`.
        labels: `[...]`, int64, each below `V`.
        ignore_index: the label of tokens that do not count.

    Returns:
        A number, float32 or what is wider of `hidden`; 0 where no label counts.

    Raises:
        UsageError: shapes or a dtype that do not fit, or a label outside the vocabulary.
    """
    if weight.dim() != 2 or hidden.shape[-1:] != weight.shape[1:]:
        raise UsageError(
            f"linear_cross_entropy: hidden must be [..., D] and weight [V, D]; "
            f"got {list(hidden.shape)} and {list(weight.shape)}"
        )
    if labels.shape != hidden.shape[:-1] or labels.dtype != torch.int64:
        raise UsageError(
            f"linear_cross_entropy: labels must be int64 of shape {list(hidden.shape[:-1])}, as hidden has rows; "
            f"got {str(labels.dtype).removeprefix('torch.')} of shape {list(labels.shape)}"
        )
    _check_range(labels, weight.shape[0], ignore_index)
    return run("linear_cross_entropy", hidden, weight, labels, ignore_index)


def _check_range(labels: Tensor, vocab_size: int, ignore_index: int) -> None:
    # Elsewhere than on a CPU the check would wait for the device; there PyTorch asserts.
    is_at_hand = type(labels) is Tensor and labels.device.type == "cpu" and not torch.compiler.is_compiling()
    if not is_at_hand or torch._C._are_functorch_transforms_active() or not labels.numel():
        return
    low, high = torch.aminmax(labels.where(labels != ignore_index, 0))
    if low < 0 or high >= vocab_size:
        wrong = int(high if high >= vocab_size else low)
        raise UsageError(f"linear_cross_entropy: label {wrong} is outside the vocabulary of {vocab_size} tokens")
