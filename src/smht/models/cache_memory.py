"""Where a cache keeps keys and values, for an op that writes a new token's there itself."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from transformers.cache_utils import Cache, StaticCache, StaticLayer

from smht.models.preallocated_cache import PreallocatedCache, PreallocatedLayer

WRITABLE = (PreallocatedCache, StaticCache)
"""Classes of caches that have such memory."""


@dataclass(frozen=True)
class CacheMemory:
    """Memory with room for one token more in every layer.

    Attributes:
        keys: of each layer, `[B, H, S, K]`.
        values: like `keys`.
        past: how many of the `S` places are taken: the next token's place.
        take_in: tells the cache that there is one token more.
    """

    keys: list[Tensor]
    values: list[Tensor]
    past: int
    take_in: Callable[[], None]


def memory_of(cache: Cache | None) -> CacheMemory | None:
    """The memory of a `PreallocatedCache` or a full `StaticCache`; None of others, of an empty and of a full one."""
    if type(cache) is PreallocatedCache:
        return _preallocated(cache.layers)
    if type(cache) is StaticCache and not cache.offloading:
        return _static(cache.layers)
    return None


def _preallocated(layers: list[PreallocatedLayer]) -> CacheMemory | None:
    is_inference = torch.is_inference_mode_enabled()
    memory = [layer.make_room(is_inference) for layer in layers]
    past = memory[0][0] if memory else 0
    # Layers that differ have seen different tokens: a pass was interrupted.
    if not past or any(tokens != past for tokens, _, _ in memory):
        return None

    def take_in() -> None:
        for layer in layers:
            layer.take_in()

    keys, values = [each[1] for each in memory], [each[2] for each in memory]
    return CacheMemory(keys, values, past, take_in)  # pyright: ignore[reportArgumentType]


def _static(layers: list[Any]) -> CacheMemory | None:
    if not layers or not all(type(layer) is StaticLayer and layer.is_initialized for layer in layers):
        return None
    # The cache counts in tensors, which compiled code reads, so they stay where they are.
    counters = [layer.cumulative_length for layer in layers]
    lengths = {int(counter) for counter in counters}
    past = lengths.pop()
    if lengths or not 0 < past < min(layer.keys.shape[2] for layer in layers):
        return None
    keys, values = [layer.keys for layer in layers], [layer.values for layer in layers]
    return CacheMemory(keys, values, past, lambda: torch._foreach_add_(counters, 1))  # pyright: ignore
