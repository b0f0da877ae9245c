"""The Hugging Face side: configuration, models, presets. Importing it registers the Auto classes."""

from smht.models.base import SmhtPreTrainedModel
from smht.models.causal_lm import SmhtForCausalLM
from smht.models.configuration import SmhtConfig
from smht.models.model import SmhtModel
from smht.models.presets import PRESETS, preset_config
from smht.models.registration import register_auto_classes
from smht.models.seq2seq_lm import SmhtForSeq2SeqLM
from smht.models.sequence_classification import SmhtForSequenceClassification
from smht.models.twin import dense_twin

register_auto_classes()

__all__ = [
    "PRESETS",
    "SmhtConfig",
    "SmhtForCausalLM",
    "SmhtForSeq2SeqLM",
    "SmhtForSequenceClassification",
    "SmhtModel",
    "SmhtPreTrainedModel",
    "dense_twin",
    "preset_config",
]
