"""What tests on edited heads share: models of every kind in double precision, and how they are run."""

from collections.abc import Sequence
from typing import Any

import pytest
import torch
from torch import Tensor

from helpers.hugging_face import random_tokens
from helpers.layers import randomize
from smht.inspection import edited_heads
from smht.layers import SplitLinear
from smht.models import SmhtConfig, SmhtForCausalLM, SmhtForSeq2SeqLM, SmhtForSequenceClassification

MODELS = {"decoder": SmhtForCausalLM, "encoder": SmhtForSequenceClassification, "encoder_decoder": SmhtForSeq2SeqLM}
HEADS, WIDTH = 4, 16
NAMES = {"attention": "self_attn", "cross_attention": "cross_attn", "feed_forward": "mlp"}
VARIANTS: list[dict[str, Any]] = [
    {},
    {"split": ()},
    {"split": ("qkv", "feed_forward"), "mixing": "shuffle"},
    {"split": ("output",), "projection_bias": True},
    {"mixing": "shuffle", "norm_scope": "head", "projection_bias": True},
    {"split": (), "projection_bias": True, "position_embedding": "relative"},
    {"norm_placement": "post", "position_embedding": "rotary"},
]
every_variant = pytest.mark.parametrize("variant", VARIANTS, ids=str)
every_stack = pytest.mark.parametrize("stack", MODELS)


def make(stack: str = "decoder", **fields: Any) -> Any:
    torch.manual_seed(0)
    sizes = {"vocab_size": 37, "hidden_size": WIDTH, "num_hidden_layers": 2, "num_attention_heads": HEADS}
    model = MODELS[stack](SmhtConfig(stack=stack, max_position_embeddings=16, **{**sizes, **fields})).double()
    randomize(model)
    return model.eval()


def inputs_for(stack: str, batch: int = 2) -> dict[str, Tensor]:
    ids = random_tokens(batch)
    return {"input_ids": ids, **({"decoder_input_ids": ids[:, :4]} if stack == "encoder_decoder" else {})}


@torch.no_grad()
def run(model: Any, inputs: dict[str, Tensor], edits: Sequence[Any] = (), *options: Any) -> Tensor:
    with edited_heads(model, edits, *options):
        return model(**inputs, use_cache=False).logits


def assert_same(found: Tensor, expected: Tensor) -> None:
    torch.testing.assert_close(found, expected, rtol=1e-12, atol=1e-12)


def stack_names(stack: str) -> list[str]:
    return ["encoder", "decoder"] if stack == "encoder_decoder" else [""]


def block_of(model: Any, stack: str, layer: int) -> Any:
    return (getattr(model.model, stack) if stack else model.model).layers[layer]


@torch.no_grad()
def silence(block: Any, part: str, head: int) -> None:
    """Set what carries a head's part into the residual stream to zero."""
    sublayer = getattr(block, NAMES[part])
    projection = sublayer.down_proj if part == "feed_forward" else sublayer.o_proj
    width = block.self_attn.head_dim
    if isinstance(projection, SplitLinear):
        projection.weight[head] = 0
        if projection.bias is not None:
            projection.bias[head * width : (head + 1) * width] = 0
    else:
        projection.weight[:, head * width : (head + 1) * width] = 0
