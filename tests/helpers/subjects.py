"""Small models for the explorer's tests, the same each time."""

from typing import Any

import torch

from smht.explorer.subject import Subject
from smht.models import SmhtConfig, SmhtForCausalLM, SmhtForSeq2SeqLM, SmhtForSequenceClassification
from smht.tokenization import build_tokenizer

_FIELDS = {"vocab_size": 259, "hidden_size": 12, "num_hidden_layers": 2, "num_attention_heads": 3}


def subject(name: str = "small", model_class: Any = SmhtForCausalLM, **changes: Any) -> Subject:
    """A model of bytes with 32 positions."""
    torch.manual_seed(0)
    ids = {"bos_token_id": 256, "eos_token_id": 257, "pad_token_id": 258}
    config = SmhtConfig(**{**_FIELDS, **ids, "max_position_embeddings": 32, **changes})
    return Subject(name, model_class(config).eval(), build_tokenizer("byte", None))


def translator() -> Subject:
    """With two stacks."""
    return subject("translator", SmhtForSeq2SeqLM, stack="encoder_decoder")


def classifier(stack: str = "encoder") -> Subject:
    """With three labels, of which one is markup."""
    labels = {0: "bad", 1: "<b>good</b>", 2: "neither"}
    return subject("classifier", SmhtForSequenceClassification, stack=stack, num_labels=3, id2label=labels)
