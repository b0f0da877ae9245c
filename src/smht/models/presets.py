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


def _andrea(name: str, parameters: str, **sizes: int) -> dict[str, Preset]:
    """One of seed 002's models, and the split model of its sizes."""
    fields = {**sizes, "max_position_embeddings": 1024}
    return {
        f"andrea-{name}": Preset(f"dense, {parameters} parameters", {**fields, "split": ()}),
        f"andrea-{name}-split": Preset(f"the split model of andrea-{name}'s sizes", fields),
    }


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
        "the default of `smht train`: what learned most in three minutes on a laptop",
        {
            "hidden_size": 192,
            "num_hidden_layers": 4,
            "num_attention_heads": 4,
            "max_position_embeddings": 128,
            "mixing": "shuffle",
            "position_embedding": "rotary",
            "tie_word_embeddings": True,
        },
    ),
    "smht-translation": Preset(
        "the default of `smht train --task translation`: an encoder-decoder",
        {
            "stack": "encoder_decoder",
            "hidden_size": 128,
            "num_hidden_layers": 3,
            "num_attention_heads": 4,
            "max_position_embeddings": 128,
            "mixing": "shuffle",
            "tie_word_embeddings": True,
        },
    ),
    "smht-classification": Preset(
        "the default of `smht train --task classification`: an encoder of one block",
        {
            "stack": "encoder",
            "hidden_size": 64,
            "num_hidden_layers": 1,
            "num_attention_heads": 4,
            "max_position_embeddings": 512,
            "mixing": "shuffle",
            "hidden_dropout": 0.3,
        },
    ),
    **_andrea("12m", "12.8M", hidden_size=384, num_attention_heads=12, num_hidden_layers=6, vocab_size=2305),
    **_andrea("120m", "98.7M", hidden_size=768, num_attention_heads=12, num_hidden_layers=12, vocab_size=8449),
    **_andrea("480m", "480M", hidden_size=1536, num_attention_heads=24, num_hidden_layers=16, vocab_size=8449),
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
