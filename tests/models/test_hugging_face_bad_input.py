"""What a model refuses: one line that says what was wrong."""

from collections.abc import Callable

import pytest
import torch

from helpers.hugging_face import CONTEXT, VOCAB_SIZE, enable_gradient_checkpointing, random_tokens, tiny_model
from smht import SmhtForCausalLM
from smht.errors import UsageError
from smht.models.cache_argument import CACHE_ARGUMENT

IDS = random_tokens()
NOTHING = torch.full_like(IDS, -100)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda model: model(), "give exactly one of input_ids and inputs_embeds"),
        (
            lambda model: model(IDS, inputs_embeds=torch.zeros(2, 6, 16)),
            "give exactly one of input_ids and inputs_embeds",
        ),
        (lambda model: model(IDS + VOCAB_SIZE), f"token id .. is outside the vocabulary of {VOCAB_SIZE} tokens"),
        (lambda model: model(torch.tensor([[1, VOCAB_SIZE]])), "token id 37 is outside the vocabulary of 37 tokens"),
        (lambda model: model(torch.tensor([[-1, 1]])), "token id -1 is outside the vocabulary of 37 tokens"),
        (
            lambda model: model(random_tokens(1, CONTEXT + 1)),
            "position 32 is outside the model's 32 positions; give fewer tokens, or use a model with a longer context",
        ),
        (lambda model: model(IDS, position_ids=torch.full_like(IDS, -1)), "position -1 is outside .*"),
        (lambda model: model(IDS, position_ids=torch.full_like(IDS, 99)), "position 99 is outside .*"),
        (lambda model: model(IDS, labels=NOTHING), "every label is -100 .*"),
        (lambda model: model(IDS[:, :1], labels=IDS[:, :1]), "every label is -100 or comes first.*"),
        (lambda model: model(IDS, labels=IDS, shift_labels=NOTHING), "every label is -100 .*"),
        (
            lambda model: model(IDS, attention_mask=torch.ones(2, 4)),
            "the attention mask covers 4 tokens, but there are 6: 0 in the cache and 6 new",
        ),
    ],
)
def test_wrong_input_is_refused_in_one_line(call: Callable[[SmhtForCausalLM], None], message: str) -> None:
    with pytest.raises(UsageError, match=rf"\A{message}\Z") as error:
        call(tiny_model())
    assert "\n" not in str(error.value)


def test_padding_may_go_beyond_the_context_where_the_tokens_do_not() -> None:
    model = tiny_model()
    input_ids = random_tokens(1, CONTEXT + 5)
    mask = torch.ones_like(input_ids)
    mask[:, :5] = 0
    wanted = model(input_ids[:, 5:]).logits
    torch.testing.assert_close(model(input_ids, attention_mask=mask).logits[:, 5:], wanted)


def test_gradient_checkpointing_refuses_a_cache() -> None:
    model = tiny_model().train()
    cache = model(IDS, use_cache=True)[CACHE_ARGUMENT]
    enable_gradient_checkpointing(model)
    with pytest.raises(UsageError, match="cannot be used with a cache"):
        model(IDS, **{CACHE_ARGUMENT: cache})


def test_no_tokens_at_all_give_no_logits() -> None:
    assert tiny_model()(IDS[:, :0], use_cache=False).logits.shape == (2, 0, VOCAB_SIZE)
    assert tiny_model()(IDS[:0], use_cache=False).logits.shape == (0, 6, VOCAB_SIZE)
