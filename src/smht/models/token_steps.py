"""Token after token of one text, with everything that stays the same between them looked at once.

Anyone may call `forward`, and between two calls anything may have been done to the model, so with each token it looks
at every module and every tensor again. A loop that hands nobody its cache can do so before its first step; of a small
model's token that is most of the time.
"""

from collections.abc import Callable
from typing import TYPE_CHECKING

import torch
from torch import Tensor
from transformers.cache_utils import Cache

from smht.errors import UsageError
from smht.models.cache_memory import memory_of
from smht.models.decoding import weights_for_one_call
from smht.models.next_token import is_bare, is_our_code
from smht.models.preallocated_cache import PreallocatedCache
from smht.ops import DecoderWeights
from smht.ops.backend import kernel_for

if TYPE_CHECKING:
    from smht.models.causal_lm import SmhtForCausalLM


class TokenSteps:
    """The logits of one token more, and of another. Called in the modes (no gradients, no autocast) it was made in.

    Args:
        model: not changed as long as this is used.
        cache: what it has seen so far, without padding; takes in each token.
        count: for how many tokens at most.
        weights: of the model's blocks.
        kernel: computes `smht.ops.split_decode`.
    """

    def __init__(
        self,
        model: "SmhtForCausalLM",
        cache: PreallocatedCache,
        count: int,
        weights: DecoderWeights,
        kernel: Callable[..., Tensor],
    ) -> None:
        stack = model.model
        self._embed, self._dropout, self._head = stack.embed_tokens, stack.dropout, model.lm_head
        self._scale = stack.embedding_scale
        self._cache, self._weights, self._kernel = cache, weights, kernel
        self._first, self._count = cache.get_seq_length(), count
        positions = torch.arange(self._first, self._first + count)[None]
        self._added = stack.embed_positions.embed(positions)
        self._rotation = stack.embed_positions.rotation(positions)
        self._factor = weights.head_dim**-0.5

    def __call__(self, input_ids: Tensor) -> Tensor:
        """The logits `[B, V]` after the next tokens `[B]`, each below the size of the vocabulary.

        Raises:
            UsageError: more steps than were asked for, or a cache that was cropped.
        """
        memory = memory_of(self._cache)
        place = -1 if memory is None else memory.past - self._first
        if memory is None or not 0 <= place < self._count:
            raise UsageError(
                f"these steps are for {self._count} tokens after the first {self._first}, "
                f"and the cache holds {self._cache.get_seq_length()}: ask the model for others"
            )
        # Modules around the blocks are called, on the shapes that they have in `forward`: they may have hooks.
        assert self._embed is not None
        x = self._embed(input_ids[:, None])
        if self._scale != 1:
            x = x * self._scale
        if self._added is not None:
            x = x + self._added[:, place : place + 1]
        x = self._dropout(x)[:, 0]
        rotation = None if self._rotation is None else tuple(table[:, place] for table in self._rotation)
        x = self._kernel(x, self._weights, memory.keys, memory.values, memory.past, None, rotation, self._factor)
        memory.take_in()
        return self._head(x[:, None])[:, 0]


def token_steps(model: "SmhtForCausalLM", cache: Cache | None, count: int) -> TokenSteps | None:
    """Steps that give what `model.forward` would, for the next `count` tokens; None where it has to be called.

    Args:
        model: in evaluation mode.
        cache: `model.new_cache()` after the tokens before.
        count: with these the model's context must not be exceeded.
    """
    stack, config = model.model, model.config
    if type(cache) is not PreallocatedCache or not is_our_code(stack) or not is_bare(model):
        return None
    memory = memory_of(cache)
    if memory is None or count < 0 or memory.past + count > config.max_position_embeddings:
        return None
    weights = weights_for_one_call(stack, {})
    if weights is None:
        return None
    kernel = kernel_for("split_decode", weights.norm_weights[0], weights, memory.keys, memory.values)
    return None if kernel is None else TokenSteps(model, cache, count, weights, kernel)
