"""Split multi-head Transformers: every projection block-diagonal per head, beside the dense ones.

Names are imported when first used, so that `import smht` costs little more than nothing.
"""

import importlib
from typing import TYPE_CHECKING, Any

from smht.version import __version__

if TYPE_CHECKING:
    from smht import ops
    from smht.layers import Block, EncoderBlock, FeedForward, MultiHeadAttention, SplitLinear
    from smht.models import (
        PRESETS,
        SmhtConfig,
        SmhtForCausalLM,
        SmhtForSeq2SeqLM,
        SmhtForSequenceClassification,
        SmhtModel,
        preset_config,
    )

_HOMES = {
    "Block": "smht.layers",
    "EncoderBlock": "smht.layers",
    "FeedForward": "smht.layers",
    "MultiHeadAttention": "smht.layers",
    "SplitLinear": "smht.layers",
    "PRESETS": "smht.models",
    "SmhtConfig": "smht.models",
    "SmhtForCausalLM": "smht.models",
    "SmhtForSeq2SeqLM": "smht.models",
    "SmhtForSequenceClassification": "smht.models",
    "SmhtModel": "smht.models",
    "preset_config": "smht.models",
}

__all__ = [
    "PRESETS",
    "Block",
    "EncoderBlock",
    "FeedForward",
    "MultiHeadAttention",
    "SmhtConfig",
    "SmhtForCausalLM",
    "SmhtForSeq2SeqLM",
    "SmhtForSequenceClassification",
    "SmhtModel",
    "SplitLinear",
    "__version__",
    "ops",
    "preset_config",
]


def __getattr__(name: str) -> Any:
    if name == "ops":
        return importlib.import_module("smht.ops")
    if name in _HOMES:
        return getattr(importlib.import_module(_HOMES[name]), name)
    raise AttributeError(f"module 'smht' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)
