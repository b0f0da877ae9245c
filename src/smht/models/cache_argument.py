"""The name of the key-value cache: `cache` since transformers 5.24, `past_key_values` before."""

import inspect
from collections.abc import Callable
from typing import Any, TypeVar

from transformers.cache_utils import Cache
from transformers.masking_utils import create_causal_mask
from transformers.utils.deprecation import deprecate_kwarg

Forward = TypeVar("Forward", bound=Callable[..., Any])

CACHE_ARGUMENT = "cache" if "cache" in inspect.signature(create_causal_mask).parameters else "past_key_values"
"""What transformers calls the cache in arguments and outputs, in the version that is installed."""


def given_cache(cache: Cache | None, past_key_values: Cache | None) -> Cache | None:
    """The cache that was given, under whichever name."""
    return past_key_values if cache is None else cache


def named_cache(cache: Cache | None) -> dict[str, Any]:
    """The cache as a keyword argument, by the name that the installed transformers expects."""
    return {CACHE_ARGUMENT: cache}


def deprecate_old_cache_name(forward: Forward) -> Forward:
    """Warn of the argument `past_key_values` where the installed transformers itself does."""
    if CACHE_ARGUMENT == "cache":
        return deprecate_kwarg("past_key_values", "5.40.0", new_name="cache")(forward)  # pyright: ignore[reportReturnType]
    return forward
