"""What tests on conversions share: small models in float64, and what they compute."""

from typing import Any

import numpy as np
import torch
from torch import Tensor

from helpers.layers import randomize
from smht import SmhtConfig, SmhtForCausalLM, SmhtForSeq2SeqLM, SmhtForSequenceClassification
from smht.conversion.assignment import Deal, Problem
from smht.models import SmhtPreTrainedModel

CLASSES = {
    "decoder": SmhtForCausalLM,
    "encoder": SmhtForSequenceClassification,
    "encoder_decoder": SmhtForSeq2SeqLM,
}
_SIZES = {
    "vocab_size": 11,
    "hidden_size": 24,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "intermediate_size": 32,
    "max_position_embeddings": 9,
}
_IDS = torch.tensor([[3, 1, 4, 1, 5, 9], [2, 6, 5, 3, 5, 8]])


def make(seed: int = 0, /, **fields: Any) -> SmhtPreTrainedModel:
    """A model with random weights everywhere, norms and biases included."""
    config = SmhtConfig(**{**_SIZES, "num_labels": 3, **fields})
    torch.manual_seed(seed)
    model = CLASSES[config.stack](config).double().eval()
    randomize(model)
    return model


@torch.no_grad()
def logits(model: SmhtPreTrainedModel) -> Tensor:
    """Of two rows of tokens."""
    target = {"decoder_input_ids": _IDS.flip(1)} if model.config.is_encoder_decoder else {}
    return model(_IDS, **target).logits


def random_deal(problem: Problem, seed: int, deals_heads: bool = True) -> Deal:
    """Everything in a random order; heads may be left where they are."""
    random = np.random.default_rng(seed)
    units = {
        group: random.permutation(count) if deals_heads or count > problem.num_chunks else np.arange(count)
        for group, count in problem.units.items()
    }
    return Deal(random.permutation(problem.width), units)
