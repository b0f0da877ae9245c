"""The CPU kernel of `split_decode`: exactness, threads, and what torch has to know of the operator."""

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.utils.flop_counter import FlopCounterMode

from helpers.decoding import Decoding, caches, random_decoding
from helpers.kernels import cpu_kernels
from smht import ops
from smht.ops import reference
from smht.ops.activation import ACTIVATIONS

DTYPES = [torch.float32, torch.bfloat16]


@pytest.fixture(scope="module", autouse=True)
def chosen_backend() -> Iterator[None]:
    with cpu_kernels():
        yield


def random_caches(decoding: Decoding, seed: int = 1) -> tuple[list[Tensor], list[Tensor]]:
    generator, weights = torch.Generator().manual_seed(seed), decoding.weights
    shape = (2, weights.num_blocks, len(decoding.x), weights.num_heads, decoding.past + 1, weights.head_dim)
    keys, values = torch.randn(shape, generator=generator).to(decoding.x.dtype)
    return caches(list(keys), decoding.past), caches(list(values), decoding.past)


def plain(
    x: Tensor, weights: ops.DecoderWeights, keys: Any, values: Any, past: int, mask: Any, rotation: Any
) -> Tensor:
    return reference.split_decode(x, weights, keys, values, past, mask, rotation, weights.head_dim**-0.5)


def assert_rounds_like_the_reference(decoding: Decoding) -> None:
    """Output, new keys and new values are at most twice as far from float64 as those of PyTorch's own ops."""
    keys, values = random_caches(decoding)
    results = []
    for function, made in (
        (plain, decoding.to(torch.float64)),
        (plain, decoding),
        (ops.split_decode, decoding),
    ):
        dtype = made.x.dtype
        own_keys, own_values = ([cache.to(dtype, copy=True) for cache in given] for given in (keys, values))
        output = function(made.x[:, -1], made.weights, own_keys, own_values, **made.arguments())
        new = [cache[:, :, decoding.past] for cache in (*own_keys, *own_values)]
        results.append([output, *new])
        for cache in (*own_keys, *own_values):
            assert cache[:, :, decoding.past + 1 :].isnan().all()
    for truth, their, our in zip(*results, strict=True):
        assert our.dtype == decoding.x.dtype and our.shape == their.shape
        our_error, their_error = ((result.double() - truth).norm().item() for result in (our, their))
        # In a few numbers PyTorch may be exact by luck.
        floor = 8 * torch.finfo(our.dtype).eps * truth.norm().item()
        assert our_error <= 2 * their_error + floor, (our_error, their_error)


@settings(max_examples=60, derandomize=True)
@given(
    blocks=st.integers(1, 2),
    batch=st.integers(1, 3),
    heads=st.integers(1, 4),
    width=st.integers(4, 50),
    hidden=st.integers(1, 150),
    past=st.integers(0, 70),
    options=st.fixed_dictionaries(
        {
            "biases": st.booleans(),
            "shuffled": st.booleans(),
            "masked": st.booleans(),
            "rotated": st.booleans(),
            "norm_per_head": st.booleans(),
            "norm_after": st.booleans(),
            "activation": st.sampled_from(sorted(ACTIVATIONS)),
        }
    ),
    dtype=st.sampled_from(DTYPES),
    seed=st.integers(0, 2**32),
)
def test_exactness(width: int, dtype: torch.dtype, options: dict[str, Any], **sizes: int) -> None:
    options["rotated"] &= width % 2 == 0
    assert_rounds_like_the_reference(random_decoding(width=width, **sizes, **options).to(dtype))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("heads", "width", "hidden"), [(12, 64, 256), (1, 300, 17), (2, 129, 511), (40, 1, 1)])
def test_exactness_over_many_vectors(heads: int, width: int, hidden: int, dtype: torch.dtype) -> None:
    decoding = random_decoding(heads=heads, width=width, hidden=hidden, past=300, masked=True, biases=True)
    assert_rounds_like_the_reference(decoding.to(dtype))


@pytest.mark.parametrize("dtype", DTYPES)
def test_tokens_that_may_not_be_seen_are_not_read(dtype: torch.dtype) -> None:
    decoding = random_decoding(past=40, masked=True, width=20).to(dtype)
    assert decoding.mask is not None
    results = []
    for poison in (0.0, torch.nan):
        keys, values = random_caches(decoding)
        for cache in (*keys, *values):
            cache.transpose(1, 2)[:, :41][~decoding.mask] = poison
        results.append(ops.split_decode(decoding.x[:, -1], decoding.weights, keys, values, **decoding.arguments()))
    assert torch.equal(*results) and results[0].isfinite().all()


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("batch", [1, 5])
def test_the_number_of_threads_changes_nothing(batch: int, dtype: torch.dtype) -> None:
    decoding = random_decoding(batch=batch, heads=7, width=33, hidden=65, past=50, shuffled=True).to(dtype)
    before, results = torch.get_num_threads(), []
    for threads in (1, 2, 3):
        torch.set_num_threads(threads)
        keys, values = random_caches(decoding)
        output = ops.split_decode(decoding.x[:, -1], decoding.weights, keys, values, decoding.past)
        results.append(torch.cat([output.flatten(), *(cache[:, :, 50].flatten() for cache in (*keys, *values))]))
    torch.set_num_threads(before)
    assert torch.equal(results[0], results[1]) and torch.equal(results[0], results[2])


# The operator


def operator_arguments(dtype: torch.dtype = torch.float32, **options: Any) -> dict[str, Any]:
    decoding = random_decoding(past=5, **options).to(dtype)
    weights = decoding.weights
    keys, values = random_caches(decoding)
    cosines, sines = (None, None) if decoding.rotation is None else (angles[:, -1] for angles in decoding.rotation)
    return {
        "x": decoding.x[:, -1].contiguous(),
        **{name: getattr(weights, name) for name in ("projections", "biases", "norm_weights", "norm_biases", "orders")},
        "keys": [cache.nan_to_num() for cache in keys],
        "values": [cache.nan_to_num() for cache in values],
        "past": 5,
        "mask": decoding.mask,
        "cosines": cosines,
        "sines": sines,
        "activation": "gelu",
        "eps": 1e-5,
        "norm_per_head": False,
        "norm_after": False,
        "scale": 0.5,
    }


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("options", [{}, {"biases": True, "shuffled": True, "masked": True, "rotated": True}])
def test_opcheck(dtype: torch.dtype, options: dict[str, bool]) -> None:
    torch.library.opcheck(torch.ops.smht.split_decode.default, tuple(operator_arguments(dtype, **options).values()))


def test_compiled_code_writes_the_caches_too() -> None:
    given = operator_arguments()

    def call(x: Tensor, keys: list[Tensor], values: list[Tensor]) -> Tensor:
        return (
            torch.ops.smht.split_decode(**{**given, "x": x * 2, "keys": keys, "values": values}) + keys[0][0, 0, 5, 0]
        )

    results = []
    for function in (call, torch.compile(call, fullgraph=True, backend="aot_eager")):
        keys, values = ([cache.clone() for cache in given[name]] for name in ("keys", "values"))
        results.append([function(given["x"], keys, values), *keys, *values])
    for one, other in zip(*results, strict=True):
        assert torch.equal(one, other)


def test_flops_are_those_of_projections_and_scores() -> None:
    with FlopCounterMode(display=False) as counted:
        torch.ops.smht.split_decode(**operator_arguments())
    batch, heads, width, hidden, blocks = 2, 3, 4, 5, 2
    projections = 2 * batch * blocks * heads * (4 * width * width + 2 * width * hidden)
    assert counted.get_total_flops() == projections + 2 * 2 * batch * blocks * heads * width * 6


@pytest.mark.parametrize(
    ("changes", "error", "message"),
    [
        ({"x": torch.zeros(2, 3, 4)}, ValueError, "x must be"),
        ({"x": torch.zeros(2, 12, dtype=torch.float16)}, TypeError, "float32 and bfloat16"),
        ({"x": torch.zeros(2, 13)}, ValueError, "3 heads of 4 channels make no row of 13"),
        ({"projections": []}, ValueError, "projections must be 12 tensors, got 0"),
        ({"projections": [torch.zeros(12)] * 12}, ValueError, "three axes"),
        ({"projections": [torch.zeros(3, 4, 5)] * 12}, ValueError, "a weight must be"),
        ({"biases": [torch.zeros(12)]}, ValueError, "biases must be 12 tensors"),
        ({"norm_weights": []}, ValueError, "norm_weights must be 5 tensors"),
        ({"norm_weights": [torch.zeros(11)] * 5}, ValueError, "a weight must be"),
        ({"norm_weights": [torch.zeros(12).bfloat16()] * 5}, TypeError, "all numbers must be of one type"),
        ({"norm_after": True}, ValueError, "norm_weights must be 4 tensors"),
        ({"orders": [torch.zeros(12)] * 2}, ValueError, "12 whole numbers"),
        ({"orders": [torch.full((12,), 12)] * 2}, ValueError, "a channel that is not there"),
        ({"keys": []}, ValueError, "no blocks"),
        ({"values": []}, ValueError, "values must be 2 tensors"),
        ({"keys": [torch.zeros(2, 3, 6, 5)] * 2}, ValueError, "a cache must be"),
        ({"keys": [torch.zeros(2, 3, 4, 6).mT] * 2}, ValueError, "lie side by side"),
        ({"keys": [torch.zeros(1, 3, 6, 4).expand(2, 3, 6, 4)] * 2}, ValueError, "must not be expanded"),
        ({"values": [torch.zeros(2, 3, 1, 4).expand(2, 3, 6, 4)] * 2}, ValueError, "must not be expanded"),
        ({"values": [torch.zeros(2, 3, 6, 4).bfloat16()] * 2}, TypeError, "all numbers must be of one type"),
        ({"past": 8}, ValueError, "no place for token 8"),
        ({"past": -1}, ValueError, "no place for token -1"),
        ({"mask": torch.ones(2, 5, dtype=torch.bool)}, ValueError, "mask must be boolean"),
        ({"mask": torch.ones(2, 6)}, ValueError, "mask must be boolean"),
        ({"cosines": torch.zeros(2, 3), "sines": torch.zeros(2, 3)}, ValueError, "cosines and sines"),
        ({"activation": "tanh"}, ValueError, "no activation is called tanh"),
    ],
)
def test_the_operator_itself_reads_nothing_that_is_not_there(
    changes: dict[str, Any], error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        torch.ops.smht.split_decode(**{**operator_arguments(), **changes})
