"""What the tests of decoding in one call share: a model's tokens by either path, and steps upon a cache."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from transformers.cache_utils import Cache

from helpers.hugging_face import random_tokens
from smht import SmhtForCausalLM
from smht.models.cache_argument import CACHE_ARGUMENT
from smht.models.preallocated_cache import PreallocatedCache
from smht.ops import backend

NEW_TOKENS = 12
GREEDY: dict[str, Any] = {"do_sample": False, "max_new_tokens": NEW_TOKENS}
STATIC: dict[str, Any] = {"cache_implementation": "static"}


def composed(function: Callable[[], Any]) -> Any:
    """What it gives with the reference, block by block."""
    before = backend._chosen
    backend.set_backend("reference")
    try:
        return function()
    finally:
        backend._chosen = before


def written(model: SmhtForCausalLM, prompt: Tensor | None = None, **options: Any) -> Tensor:
    torch.manual_seed(0)
    return model.generate(random_tokens(2, 5) if prompt is None else prompt, **{**GREEDY, **options})


def step(model: Any, cache: Cache, tokens: int = 1, **options: Any) -> Any:
    return model(random_tokens(2, tokens, seed=3), **{CACHE_ARGUMENT: cache}, **options)


def begun(model: SmhtForCausalLM, cache: Cache | None = None) -> Cache:
    """A cache that holds six tokens."""
    cache = PreallocatedCache(len(model.model.layers)) if cache is None else cache
    with torch.no_grad():
        step(model, cache, tokens=6)
    return cache
