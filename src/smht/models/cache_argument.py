"""The name of the key-value cache: `cache` since transformers 5.24, `past_key_values` before."""

import inspect
from typing import Any

from transformers.cache_utils import Cache
from transformers.masking_utils import create_causal_mask

CACHE_ARGUMENT = "cache" if "cache" in inspect.signature(create_causal_mask).parameters else "past_key_values"
"""What transformers calls the cache in arguments and outputs, in the version that is installed."""


def given_cache(cache: Cache | None, past_key_values: Cache | None) -> Cache | None:
    """The cache that was given, under whichever name."""
    return past_key_values if cache is None else cache


def named_cache(cache: Cache | None) -> dict[str, Any]:
    """The cache as a keyword argument, by the name that the installed transformers expects."""
    return {CACHE_ARGUMENT: cache}
