"""The Hugging Face side: configuration, models, presets. Importing it registers the Auto classes."""

from smht.models.configuration import SmhtConfig
from smht.models.modeling import SmhtForCausalLM, SmhtModel, SmhtPreTrainedModel
from smht.models.presets import PRESETS, preset_config
from smht.models.registration import register_auto_classes
from smht.models.twin import dense_twin

register_auto_classes()

__all__ = [
    "PRESETS",
    "SmhtConfig",
    "SmhtForCausalLM",
    "SmhtModel",
    "SmhtPreTrainedModel",
    "dense_twin",
    "preset_config",
]
