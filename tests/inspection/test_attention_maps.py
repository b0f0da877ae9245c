from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from helpers.errors import refused
from helpers.hugging_face import random_tokens
from helpers.layers import randomize
from smht.inspection.attention_maps import attention_maps, head_statistics, matching_brackets
from smht.models import SmhtConfig, SmhtForCausalLM, SmhtForSeq2SeqLM

SIZES: dict[str, Any] = {"vocab_size": 37, "hidden_size": 16, "num_attention_heads": 4, "max_position_embeddings": 16}
IDS = random_tokens(batch=1)


def make(model_class: Any = SmhtForCausalLM, **fields: Any) -> Any:
    torch.manual_seed(0)
    model = model_class(SmhtConfig(**{**SIZES, "num_hidden_layers": 2, **fields}))
    randomize(model)
    return model.eval()


def test_maps_are_the_weights_that_transformers_gives() -> None:
    model = make(attn_implementation="eager")
    expected = model(IDS, output_attentions=True).attentions
    found = attention_maps(make(), input_ids=IDS)
    assert found.maps.keys() == {"self"}
    torch.testing.assert_close(found.of(), torch.stack([layer[0] for layer in expected]))
    torch.testing.assert_close(found.of(layer=1, head=2), expected[1][0, 2])


def test_two_stacks_have_three_kinds() -> None:
    model = make(SmhtForSeq2SeqLM, stack="encoder_decoder", num_decoder_layers=3)
    found = attention_maps(model, input_ids=IDS, decoder_input_ids=IDS[:, :4])
    assert {kind: tuple(maps.shape) for kind, maps in found.maps.items()} == {
        "self": (3, 4, 4, 4),
        "encoder": (2, 4, 6, 6),
        "cross": (3, 4, 4, 6),
    }
    for maps in found.maps.values():
        torch.testing.assert_close(maps.sum(-1), torch.ones(maps.shape[:-1]))


def test_what_is_not_there_is_named() -> None:
    found = attention_maps(make(), input_ids=IDS)
    with refused("no 'cross' attention, only 'self'"):
        found.of("cross")
    with refused("there is no layer 2: they are 0 to 1"):
        found.of(layer=2)
    with refused("there is no head 4: they are 0 to 3"):
        found.of(head=4)


def test_statistics_of_heads_that_one_can_reckon() -> None:
    size = 4
    uniform = torch.ones(size, size).tril()
    uniform = uniform / uniform.sum(-1, keepdim=True)
    previous = torch.tensor([[1.0, 0, 0, 0], [1, 0, 0, 0], [0, 1, 0, 0], [0, 0, 1, 0]])
    found = head_statistics(torch.stack([uniform, previous])[None], {3: 1})
    assert [(one.layer, one.head) for one in found] == [(0, 0), (0, 1)]
    assert found[0].entropy == pytest.approx((0 + 1 + 1.584963 + 2) / 4, abs=1e-5)
    assert found[0].distance == pytest.approx((0 + 1 / 2 + 1 + 3 / 2) / 4)
    assert found[0].previous == pytest.approx((1 / 2 + 1 / 3 + 1 / 4) / 3)
    assert found[0].bracket == pytest.approx(1 / 4)
    assert (found[1].entropy, found[1].previous) == (0, 1)
    assert found[1].distance == pytest.approx(3 / 4)
    assert found[1].first == pytest.approx(1 / 2)
    assert head_statistics(torch.ones(1, 1, 1, 1))[0].bracket is None


def test_statistics_are_of_one_text() -> None:
    with refused("4 queries and 6 keys"):
        head_statistics(torch.ones(1, 1, 4, 6))


@pytest.mark.parametrize(
    ("pieces", "expected"),
    [
        ([b"f", b"(", b"x", b")"], {3: 1}),
        ([b"f(", b"g[", b"1", b"]", b")"], {3: 1, 4: 0}),
        ([b"(", b"]", b")"], {2: 0}),
        ([b"()", b")"], {}),
        ([b"{", b"", b"}"], {2: 0}),
        ([], {}),
    ],
)
def test_brackets(pieces: list[bytes], expected: dict[int, int]) -> None:
    assert matching_brackets(pieces) == expected


@given(st.lists(st.binary(max_size=3), max_size=20))
def test_brackets_look_back(pieces: list[bytes]) -> None:
    assert all(start < end for end, start in matching_brackets(pieces).items())
