"""`split_decode` against whole sequences by dense matrices, and its kernel against float64."""

from itertools import chain
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from helpers.decoding import Decoding, caches, random_decoding, whole_sequences
from helpers.errors import refused
from smht.ops import DecoderWeights, split_decode
from smht.ops.activation import ACTIVATIONS

OPTIONS = {
    "blocks": st.integers(1, 3),
    "batch": st.integers(1, 5),
    "heads": st.integers(1, 5),
    "width": st.integers(1, 9),
    "hidden": st.integers(1, 9),
    "past": st.integers(0, 9),
    "seed": st.integers(0, 2**32),
    "biases": st.booleans(),
    "shuffled": st.booleans(),
    "masked": st.booleans(),
    "rotated": st.booleans(),
    "norm_per_head": st.booleans(),
    "norm_after": st.booleans(),
    "activation": st.sampled_from(sorted(ACTIVATIONS)),
}


def decoding_of(options: dict[str, Any]) -> Decoding:
    """A head of one channel has nothing to turn and no variance, and an odd one no pairs."""
    options["rotated"] &= options["width"] % 2 == 0
    options["norm_per_head"] &= options["width"] > 1
    return random_decoding(**options)


def decode(decoding: Decoding, keys: list[Tensor], values: list[Tensor], **changes: Any) -> Tensor:
    return split_decode(decoding.x[:, -1], decoding.weights, keys, values, **{**decoding.arguments(), **changes})


def assert_decodes(decoding: Decoding, tolerance: float) -> None:
    """The last token's output, and the caches, are those of the whole sequences."""
    exact, all_keys, all_values = whole_sequences(decoding.to(torch.float64))
    dtype, past = decoding.x.dtype, decoding.past
    keys, values = ([cache.to(dtype) for cache in caches(rows, past)] for rows in (all_keys, all_values))
    expected = [caches(rows, past + 1, room=1) for rows in (all_keys, all_values)]
    output = decode(decoding, keys, values)
    assert output.dtype == dtype
    for ours, theirs in zip([output, *keys, *values], [exact[:, -1], *expected[0], *expected[1]], strict=True):
        torch.testing.assert_close(ours.double(), theirs, rtol=tolerance, atol=tolerance, equal_nan=True)


@given(options=st.fixed_dictionaries(OPTIONS))
def test_a_token_gives_what_it_gives_as_the_last_of_its_sequence(options: dict[str, Any]) -> None:
    assert_decodes(decoding_of(options), 1e-9)


def test_one_call_after_another_is_the_whole_sequence() -> None:
    decoding = random_decoding(past=7, rotated=True, shuffled=True)
    exact, all_keys, all_values = whole_sequences(decoding)
    keys, values = caches(all_keys, 0, room=7), caches(all_values, 0, room=7)
    assert decoding.rotation is not None
    for past in range(8):
        angles = decoding.rotation[0][:, past], decoding.rotation[1][:, past]
        output = split_decode(decoding.x[:, past], decoding.weights, keys, values, past, rotation=angles)
        torch.testing.assert_close(output, exact[:, past], rtol=1e-9, atol=1e-9)


def test_the_scale_and_one_rotation_for_all_sequences() -> None:
    decoding = random_decoding(past=3, rotated=True)
    _, all_keys, all_values = whole_sequences(decoding)
    assert decoding.rotation is not None
    angles = decoding.rotation[0][:1, -1], decoding.rotation[1][:1, -1]
    results = [
        decode(decoding, caches(all_keys, 3), caches(all_values, 3), rotation=rotation, scale=scale)
        for rotation, scale in [
            (angles, 0.5),
            ((angles[0].expand(2, -1), angles[1].expand(2, -1)), 0.5),
            (angles, None),
            (angles, 1.0),
        ]
    ]
    torch.testing.assert_close(results[0], results[1], rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(results[0], results[2], rtol=1e-12, atol=1e-12)  # 1/√4
    assert not torch.allclose(results[0], results[3])


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_sequence_that_may_attend_to_nothing_gets_zeros_from_attention(dtype: torch.dtype) -> None:
    decoding = random_decoding(past=3, blocks=1).to(dtype)
    _, all_keys, all_values = whole_sequences(decoding)
    mask = torch.tensor([[True] * 4, [False] * 4])
    output = decode(decoding, caches(all_keys, 3), caches(all_values, 3), mask=mask)
    decoding.weights.projections[3].zero_()  # no output, no attention
    without = decode(decoding, caches(all_keys, 3), caches(all_values, 3))
    torch.testing.assert_close(output[1], without[1])
    assert not torch.allclose(output[0], without[0])


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64])
def test_nothing_has_to_be_contiguous(dtype: torch.dtype) -> None:
    decoding = random_decoding(width=18, hidden=7, past=4, shuffled=True, biases=True).to(dtype)
    weights = decoding.weights

    def strided(tensors: list[Tensor]) -> list[Tensor]:
        return [torch.stack([tensor, torch.full_like(tensor, 77)], -1)[..., 0] for tensor in tensors]

    apart = DecoderWeights(
        strided(weights.projections),
        strided(weights.norm_weights),
        strided(weights.norm_biases),
        strided(weights.biases),
        strided(weights.orders),
    )
    all_rows = [torch.randn(2, 3, 5, 18).to(dtype) for _ in range(4)]
    caches_of = [caches(rows, 4) for rows in (all_rows[:2], all_rows[2:])]
    # As transposed [B, S, H, K], and as a part of longer memory.
    others = [
        [cache.transpose(1, 2).contiguous().transpose(1, 2) for cache in caches_of[0]],
        [torch.cat([cache, cache], 2)[:, :, :7] for cache in caches_of[1]],
    ]
    x = torch.stack([decoding.x[:, -1]] * 2, -1)[..., 0]
    torch.testing.assert_close(split_decode(x, apart, *others, 4), split_decode(x.contiguous(), weights, *caches_of, 4))
    for one, other in zip(chain(*others), chain(*caches_of), strict=True):
        torch.testing.assert_close(one, other, equal_nan=True)


def test_no_sequences_are_no_work() -> None:
    decoding = random_decoding(batch=0)
    keys = [torch.zeros(0, 3, 8, 4, dtype=torch.float64)] * 2
    assert decode(decoding, keys, keys).shape == (0, 12)
    single = decoding.to(torch.float32)
    keys = [cache.float() for cache in keys]
    assert decode(single, keys, keys).shape == (0, 12)


# Refusals


def prepared(**options: Any) -> tuple[Decoding, list[Tensor], list[Tensor]]:
    decoding = random_decoding(**options)
    _, all_keys, all_values = whole_sequences(decoding)
    return decoding, caches(all_keys, decoding.past), caches(all_values, decoding.past)


@pytest.mark.parametrize(
    ("changes", "needles"),
    [
        ({"x": torch.zeros(2, 1, 12)}, ("x must be [B, D] with D = 12", "[2, 1, 12]")),
        ({"x": torch.zeros(2, 13)}, ("x must be [B, D] with D = 12", "[2, 13]")),
        ({"keys": []}, ("keys must be one tensor a block, 2", "got 0")),
        ({"values": [torch.zeros(2, 3, 9, 4)]}, ("values must be one tensor a block, 2", "got 1")),
        ({"keys": [torch.zeros(1, 3, 9, 4)] * 2}, ("keys must be [B, H, S, K] = [2, 3, S, 4]", "[1, 3, 9, 4]")),
        ({"values": [torch.zeros(2, 3, 36)] * 2}, ("values must be [B, H, S, K]", "[2, 3, 36]")),
        ({"past": 9}, ("keys of 9 tokens have no place for token 9",)),
        ({"past": -1}, ("keys of 9 tokens have no place for token -1",)),
        ({"mask": torch.ones(2, 6, dtype=torch.bool)}, ("mask must be boolean, [B, S] with B = 2 and S > 6", "[2, 6]")),
        ({"mask": torch.ones(1, 7, dtype=torch.bool)}, ("mask must be boolean", "[1, 7]")),
        ({"mask": torch.ones(2, 7)}, ("mask must be boolean", "float32")),
        ({"rotation": (torch.ones(2, 2), torch.ones(2, 3))}, ("[B, K/2]", "K = 4", "[2, 3]")),
        ({"rotation": (torch.ones(3, 2), torch.ones(3, 2))}, ("[B, K/2]", "B = 2", "[3, 2]")),
    ],
)
def test_what_does_not_fit_is_refused_and_no_cache_is_written(
    changes: dict[str, Any], needles: tuple[str, ...]
) -> None:
    decoding, keys, values = prepared()
    before = [cache.clone() for cache in (*keys, *values)]
    given = {"x": decoding.x[:, -1], "keys": keys, "values": values, **decoding.arguments(), **changes}
    with refused("split_decode", *needles):
        split_decode(given.pop("x"), decoding.weights, given.pop("keys"), given.pop("values"), **given)
    for cache, kept in zip((*keys, *values), before, strict=True):
        torch.testing.assert_close(cache, kept, rtol=0, atol=0, equal_nan=True)


def test_odd_heads_cannot_be_turned() -> None:
    decoding, keys, values = prepared(width=3)
    with refused("cosines and sines", "K = 3"):
        decode(decoding, keys, values, rotation=(torch.ones(2, 1), torch.ones(2, 1)))


SQUARE, ROW = torch.zeros(2, 3, 3), torch.zeros(6)
FIELDS: dict[str, Any] = {
    "projections": [SQUARE] * 4 + [torch.zeros(2, 3, 5), torch.zeros(2, 5, 3)],
    "norm_weights": [ROW] * 3,
    "norm_biases": [ROW] * 3,
}


@pytest.mark.parametrize(
    ("changes", "needles"),
    [
        ({"projections": []}, ("six a block, q, k, v, o, up, down", "got 0")),
        ({"projections": FIELDS["projections"] + [SQUARE]}, ("six a block", "got 7")),
        ({"projections": [SQUARE] * 4 + [ROW, ROW]}, ("up must be [H, K, G]", "[6]")),
        (
            {"projections": [SQUARE] * 4 + [torch.zeros(2, 3, 5), torch.zeros(2, 3, 5)]},
            ("down of block 0", "[2, 5, 3]"),
        ),
        ({"projections": [torch.zeros(3, 3, 3), *FIELDS["projections"][1:]]}, ("q of block 0 must be [2, 3, 3]",)),
        ({"norm_weights": [ROW] * 2}, ("norm_weights must be 3 for 1 blocks", "got 2")),
        ({"norm_biases": [ROW, ROW, torch.zeros(5)]}, ("norm_biases[2] must be [6]", "[5]")),
        ({"norm_after": True}, ("norm_weights must be 2 for 1 blocks", "got 3")),
        ({"biases": [ROW] * 6}, ("biases[4] must be [10]", "[6]")),
        ({"orders": [ROW.long()] * 2}, ("orders must be 1 for 1 blocks", "got 2")),
        ({"activation": "geluu"}, ("no activation is called 'geluu'", "gelu")),
    ],
)
def test_weights_that_do_not_fit_each_other_are_refused(changes: dict[str, Any], needles: tuple[str, ...]) -> None:
    DecoderWeights(**FIELDS)
    with refused(*needles):
        DecoderWeights(**{**FIELDS, **changes})


def test_gradients_are_refused() -> None:
    decoding, keys, values = prepared()
    decoding.weights.projections[0].requires_grad_()
    with refused("split_decode takes no gradients", "torch.no_grad()"):
        decode(decoding, keys, values)
    with torch.no_grad():
        decode(decoding, keys, values)
