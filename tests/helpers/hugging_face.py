"""What the tests of the Hugging Face side share: tiny models of each kind, and tokens for them."""

from typing import Any, TypeVar

import torch
from torch import Tensor, nn

from helpers.layers import randomize
from smht import SmhtConfig, SmhtForCausalLM, SmhtForSeq2SeqLM
from smht.models import SmhtPreTrainedModel

Model = TypeVar("Model", bound=SmhtPreTrainedModel)

ARCHITECTURES: dict[str, dict[str, Any]] = {
    "split": {},
    "shuffle": {"mixing": "shuffle", "tie_word_embeddings": True},
    "head-norm": {"mixing": "shuffle", "norm_scope": "head", "projection_bias": True},
    "dense": {"split": ()},
}
"""One of each kind of model that goes its own way through the code."""

TWO_STACKS: dict[str, Any] = {"stack": "encoder_decoder", "bos_token_id": 1, "pad_token_id": 0}

VOCAB_SIZE = 37
CONTEXT = 32


def tiny_config(architecture: str = "shuffle", **changes: Any) -> SmhtConfig:
    """Three layers of four heads of four channels."""
    fields: dict[str, Any] = {
        "vocab_size": VOCAB_SIZE,
        "hidden_size": 16,
        "num_hidden_layers": 3,
        "num_attention_heads": 4,
        "intermediate_size": 32,
        "max_position_embeddings": CONTEXT,
    }
    return SmhtConfig(**{**fields, **ARCHITECTURES[architecture], **changes})


def tiny(model_class: type[Model], architecture: str = "shuffle", seed: int = 0, **changes: Any) -> Model:
    """Ready to predict, and far enough from its initial values that no parameter is without effect."""
    torch.manual_seed(seed)
    model = model_class(tiny_config(architecture, **changes))
    randomize(model)
    return model.eval()


def tiny_model(architecture: str = "shuffle", seed: int = 0, **changes: Any) -> SmhtForCausalLM:
    """A language model, as `tiny` makes it."""
    return tiny(SmhtForCausalLM, architecture, seed, **changes)


def tiny_seq2seq(architecture: str = "shuffle", **changes: Any) -> SmhtForSeq2SeqLM:
    """An encoder-decoder with the two special tokens that it needs, as `tiny` makes it."""
    return tiny(SmhtForSeq2SeqLM, architecture, **{**TWO_STACKS, **changes})


def with_last_blocks_only(model: Model) -> Model:
    """The model without blocks before the last one of each stack, which has all that blocks have: dealt channels too.

    A compiler's time goes by the number of blocks, and each further block is the same to it.
    """
    for stack in list(model.modules()):
        if isinstance(blocks := getattr(stack, "layers", None), nn.ModuleList):
            stack.layers = blocks[-1:]
    return model


def random_tokens(batch: int = 2, tokens: int = 6, seed: int = 0) -> Tensor:
    """`[batch, tokens]` token ids of the tiny vocabulary."""
    return torch.randint(VOCAB_SIZE, (batch, tokens), generator=torch.Generator().manual_seed(seed))


def left_padded(input_ids: Tensor, padding: int, pad_token_id: int = 0) -> tuple[Tensor, Tensor]:
    """The ids with `padding` places before them, and the attention mask of that."""
    pad = torch.full((input_ids.shape[0], padding), pad_token_id)
    return torch.cat([pad, input_ids], 1), torch.cat([torch.zeros_like(pad), torch.ones_like(input_ids)], 1)


def right_padded(input_ids: Tensor, padding: int, pad_token_id: int = 0) -> tuple[Tensor, Tensor]:
    """The ids with `padding` places after them, and the attention mask of that."""
    pad = torch.full((input_ids.shape[0], padding), pad_token_id)
    return torch.cat([input_ids, pad], 1), torch.cat([torch.ones_like(input_ids), torch.zeros_like(pad)], 1)


def enable_gradient_checkpointing(model: SmhtPreTrainedModel, **options: Any) -> None:
    """By the method's name in the installed transformers: 5.24 deprecates the old one."""
    if hasattr(model, "activation_checkpointing_enable"):
        model.activation_checkpointing_enable(activation_checkpointing_kwargs=options or None)
    else:
        model.gradient_checkpointing_enable(gradient_checkpointing_kwargs=options or None)
