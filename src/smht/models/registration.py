"""Tells transformers' Auto classes about the models, in this process and in saved folders."""

from transformers import (
    AutoConfig,
    AutoModel,
    AutoModelForCausalLM,
    AutoModelForSeq2SeqLM,
    AutoModelForSequenceClassification,
)

from smht.models.causal_lm import SmhtForCausalLM
from smht.models.configuration import SmhtConfig
from smht.models.model import SmhtModel
from smht.models.seq2seq_lm import SmhtForSeq2SeqLM
from smht.models.sequence_classification import SmhtForSequenceClassification


def register_auto_classes() -> None:
    """Make `AutoModel.from_pretrained` and its kin find the models.

    A saved model also carries the code that names them, so that `trust_remote_code=True` loads it in a process
    that never imported smht (`SmhtPreTrainedModel.save_pretrained`).
    """
    AutoConfig.register(SmhtConfig.model_type, SmhtConfig, exist_ok=True)
    AutoModel.register(SmhtConfig, SmhtModel, exist_ok=True)
    AutoModelForCausalLM.register(SmhtConfig, SmhtForCausalLM, exist_ok=True)
    AutoModelForSeq2SeqLM.register(SmhtConfig, SmhtForSeq2SeqLM, exist_ok=True)
    AutoModelForSequenceClassification.register(SmhtConfig, SmhtForSequenceClassification, exist_ok=True)
    SmhtConfig.register_for_auto_class()
