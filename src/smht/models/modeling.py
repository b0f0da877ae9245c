"""The classes behind the Auto classes. A saved model carries a copy of this file, hence the absolute imports."""

from smht.models.causal_lm import SmhtForCausalLM
from smht.models.model import SmhtModel
from smht.models.seq2seq_lm import SmhtForSeq2SeqLM
from smht.models.sequence_classification import SmhtForSequenceClassification

__all__ = ["SmhtForCausalLM", "SmhtForSeq2SeqLM", "SmhtForSequenceClassification", "SmhtModel"]
