"""Named architectures."""

from dataclasses import dataclass, field
from typing import Any

from smht.errors import UsageError, did_you_mean
from smht.models.configuration import SmhtConfig


@dataclass(frozen=True)
class Preset:
    """An architecture with a name and a reason."""

    description: str
    fields: dict[str, Any] = field(default_factory=dict)


PRESETS: dict[str, Preset] = {
    "smht-mini": Preset(
        "the article's walkthrough: 1,904 parameters, to follow number by number",
        {
            "vocab_size": 100,
            "hidden_size": 8,
            "num_hidden_layers": 1,
            "num_attention_heads": 4,
            "intermediate_size": 16,
            "max_position_embeddings": 16,
        },
    ),
    "smht-small": Preset(
        "the default of `smht train`: shuffle mixing and tied embeddings; minutes on a laptop",
        {
            "hidden_size": 256,
            "num_hidden_layers": 4,
            "num_attention_heads": 4,
            "max_position_embeddings": 256,
            "mixing": "shuffle",
            "tie_word_embeddings": True,
        },
    ),
}
"""Every preset by name."""


def preset_config(name: str, **changes: Any) -> SmhtConfig:
    """The configuration of a preset, with some fields changed.

    Raises:
        UsageError: no preset has that name (the nearest are offered), or `SmhtConfig` refuses the fields.
    """
    if name not in PRESETS:
        raise UsageError(f"no preset is called {name!r}: {did_you_mean(name, PRESETS)}")
    return SmhtConfig(**{**PRESETS[name].fields, **changes})
