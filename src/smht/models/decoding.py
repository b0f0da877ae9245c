"""One new token of each sequence through all blocks in one call, where that is what the blocks would compute.

The composed path, block by block, defines the model. `ops.split_decode` computes the same numbers in one call, so it
may stand in where nobody can see or needs what lies in between:

| condition | why |
|---|---|
| a decoder, all of its projections split | the op is head by head, and has no attention to a memory |
| the pattern `full`, no bias on the scores | others are not in the op's contract |
| the attention function is in `SDPA_FUNCTIONS` | others return weights, or do something else |
| every module from the first block to the last norm is of a class of ours, with its own `forward` and without hooks | \
LoRA, quantisation, offloading and observers replace or hook modules |
| none of them in training, no gradients recorded | dropout; the op has no gradient |
| one new token of each sequence | the op takes one |
| a `PreallocatedCache` or a `StaticCache` that holds tokens and has room | the op writes keys and values in place |
| no mask, or booleans `[B, S]` or `[B, 1, 1, S]` | the op says of each cached token whether it may be seen |
| no hidden states, attention weights or anything else asked for | they lie in between |
| the backend in use has a kernel for it (no autocast, no export) | without one the composed path is as fast |
| no compilation | compilers know the composed path |
"""

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from transformers.cache_utils import Cache, DynamicCache
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

from smht.layers.fast_path import SDPA_FUNCTIONS
from smht.models.cache_memory import WRITABLE, memory_of
from smht.models.decoder_modules import weights_of
from smht.models.preallocated_cache import PreallocatedCache
from smht.ops import DecoderWeights
from smht.ops.backend import kernel_for
from smht.ops.decode import check_decode

if TYPE_CHECKING:
    from smht.models.causal_lm import SmhtForCausalLM
    from smht.models.stack import SmhtStack

_OUTPUT_FLAGS = ("output_attentions", "output_hidden_states")


def decode_fused(
    stack: "SmhtStack",
    hidden_states: Tensor,
    attention_mask: Any,
    positions: Tensor,
    cache: Cache | None,
    kwargs: dict[str, Any],
) -> Tensor | None:
    """The stack's output for one new token of each sequence; None where that is for the composed path.

    Args:
        stack: embeddings, blocks and norm.
        hidden_states: `[B, T, D]`, embedded.
        attention_mask: as `SmhtStack.run` has it after its checks.
        positions: `[B, T]` or `[1, T]`.
        cache: the tokens before these; takes in the new one where the result is not None.
        kwargs: what would be handed to the attention functions.

    Returns:
        `[B, 1, D]` or None.
    """
    if hidden_states.shape[1] != 1 or type(cache) not in WRITABLE:
        return None
    weights = weights_for_one_call(stack, kwargs)
    memory = None if weights is None else memory_of(cache)
    if weights is None or memory is None:
        return None
    if attention_mask is not None:
        attention_mask = _key_mask(attention_mask, hidden_states.shape[0], memory.past)
        if attention_mask is None:
            return None
    kernel = kernel_for("split_decode", hidden_states, weights, memory.keys, memory.values)
    if kernel is None:
        return None
    rotation = stack.embed_positions.rotation(positions)
    turned = None if rotation is None else (rotation[0][:, 0], rotation[1][:, 0])
    arguments = (hidden_states[:, 0], weights, memory.keys, memory.values, memory.past, attention_mask, turned)
    # What `ops.split_decode` does, but for asking which backend takes the call, which is known.
    check_decode(*arguments)
    decoded = kernel(*arguments, weights.head_dim**-0.5)
    memory.take_in()
    return decoded[:, None]


def weights_for_one_call(stack: "SmhtStack", kwargs: dict[str, Any]) -> DecoderWeights | None:
    """The weights of a stack that decodes in one call, by what the table says of stack, modes and arguments."""
    if torch.compiler.is_compiling() or torch.is_grad_enabled():
        return None
    if not asks_for_output_alone(stack, kwargs) or not _attends_plainly(stack):
        return None
    return weights_of(stack)


def preferred_cache(model: "SmhtForCausalLM", cache: Any) -> Any:
    """A `PreallocatedCache` in place of an empty `DynamicCache` where the model decodes in one call; else the cache."""
    if type(cache) is not DynamicCache or cache.offloading or cache.get_seq_length():
        return cache
    stack = model.model
    is_compiled = any("forward" in vars(module) or module._compiled_call_impl for module in (model, stack))
    weights = None if is_compiled or not _attends_plainly(stack) else weights_of(stack)
    if weights is None or kernel_for("split_decode", weights.norm_weights[0], weights, [], []) is None:
        return cache
    return PreallocatedCache(len(stack.layers))


def asks_for_output_alone(stack: "SmhtStack", kwargs: dict[str, Any]) -> bool:
    """Whether neither arguments nor configuration ask for what lies between embeddings and output, or change it."""
    asked = [kwargs.get(flag, getattr(stack.config, flag, False)) for flag in _OUTPUT_FLAGS]
    return not any(asked) and all(name in _OUTPUT_FLAGS for name in kwargs)


def _attends_plainly(stack: "SmhtStack") -> bool:
    config = stack.config
    function = ALL_ATTENTION_FUNCTIONS.get(config._attn_implementation)
    return config.attention_pattern == "full" and stack.embed_positions.bias is None and function in SDPA_FUNCTIONS


def _key_mask(attention_mask: Any, batch: int, past: int) -> Tensor | None:
    """The mask as booleans `[B, S]`, if it is one that the op takes."""
    if not isinstance(attention_mask, Tensor) or attention_mask.dtype != torch.bool:
        return None
    if attention_mask.dim() == 4 and attention_mask.shape[1:3] == (1, 1):
        attention_mask = attention_mask[:, 0, 0]
    fits = attention_mask.dim() == 2 and attention_mask.shape[0] == batch and attention_mask.shape[1] > past
    return attention_mask if fits else None
