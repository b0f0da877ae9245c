"""The hidden state of one new token of each sequence, without the detour by `SmhtModel.forward`.

In generation a token takes a few milliseconds, and what the wrappers of `forward` look at takes a tenth of that. For a
model that is our own code alone, and of which nothing else is asked, `forward` embeds the token and runs the blocks,
and that is what is done here.
"""

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.module import _has_any_global_hook
from transformers.cache_utils import Cache

from smht.models.cache_memory import WRITABLE
from smht.models.decoding import asks_for_output_alone
from smht.models.model import SmhtModel

_FORWARD = SmhtModel.forward


def run_next_token(
    model: SmhtModel,
    input_ids: Tensor | None,
    attention_mask: Tensor | None,
    position_ids: Tensor | None,
    cache: Cache | None,
    kwargs: dict[str, Any],
) -> Tensor | None:
    """What `model.forward` would give for one new token of each sequence.

    Args:
        model: a decoder.
        input_ids: as `SmhtModel.forward` takes them, like all that follow.
        attention_mask: see there.
        position_ids: see there.
        cache: see there.
        kwargs: whatever else would be given.

    Returns:
        `[B, 1, D]`, or None where `forward` has to be called.

    Raises:
        UsageError: what `forward` refuses.
    """
    if input_ids is None or type(cache) not in WRITABLE or input_ids.dim() != 2 or input_ids.shape[1] != 1:
        return None
    if torch.compiler.is_compiling() or torch.is_grad_enabled() or not is_our_code(model):
        return None
    if not asks_for_output_alone(model, kwargs):
        return None
    return model.run(model.embed(input_ids, None), attention_mask, position_ids, cache)


def is_our_code(model: SmhtModel) -> bool:
    """Whether calling the model runs `SmhtModel.forward` in evaluation and nothing else."""
    is_plain = type(model) is SmhtModel and SmhtModel.forward is _FORWARD and is_bare(model)
    return is_plain and not (model.training or _has_any_global_hook())


def is_bare(module: nn.Module) -> bool:
    """Whether calling a module runs its class's `forward`, as long as no hook is on all modules."""
    return (
        "forward" not in vars(module)
        and module._compiled_call_impl is None
        and not (module._forward_hooks or module._forward_pre_hooks)
    )
