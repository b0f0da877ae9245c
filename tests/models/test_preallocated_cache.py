"""`PreallocatedCache` does what transformers' `DynamicCache` does."""

import copy
import io
from collections.abc import Callable

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor
from transformers import DynamicCache

from smht.models.preallocated_cache import PreallocatedCache

BATCH, HEADS, WIDTH, LAYERS = 2, 3, 4, 2


def new_rows(tokens: int, batch: int = BATCH, seed: int = 0) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    keys, values = torch.randn(2, batch, HEADS, tokens, WIDTH, generator=generator)
    return keys, values


def saved_and_loaded(cache: PreallocatedCache) -> PreallocatedCache:
    file = io.BytesIO()
    torch.save(cache, file)
    file.seek(0)
    return torch.load(file, weights_only=False)


def both() -> tuple[PreallocatedCache, DynamicCache]:
    return PreallocatedCache(LAYERS), DynamicCache()


def assert_same(ours: PreallocatedCache, theirs: DynamicCache) -> None:
    assert ours.get_seq_length() == theirs.get_seq_length()
    assert len(ours) == len(theirs) == LAYERS
    assert ours.get_mask_sizes(1, 0) == theirs.get_mask_sizes(1, 0)
    for our, their in zip(ours.layers, theirs.layers, strict=True):
        assert our.is_initialized == their.is_initialized
        if their.keys is None or not their.keys.numel():
            assert our.keys is None or not our.keys.numel()
        else:
            assert our.keys is not None and our.values is not None and their.values is not None
            assert torch.equal(our.keys, their.keys) and torch.equal(our.values, their.values)


@given(
    steps=st.lists(
        st.one_of(
            st.tuples(st.just("update"), st.integers(1, 5)),
            st.tuples(st.just("crop"), st.integers(0, 2)),
            st.tuples(st.just("reorder"), st.permutations(range(BATCH))),
            st.just(("reset", None)),
        ),
        min_size=1,
        max_size=12,
    )
)
def test_every_sequence_of_operations_gives_the_same(steps: list[tuple[str, object]]) -> None:
    ours, theirs = both()
    for number, (name, argument) in enumerate(steps):
        if name == "update":
            for layer in range(LAYERS):
                rows = new_rows(argument, seed=10 * number + layer)  # pyright: ignore[reportArgumentType]
                with torch.no_grad():
                    returned = [cache.update(*rows, layer) for cache in (ours, theirs)]
                assert all(torch.equal(*pair) for pair in zip(*returned, strict=True))
        elif theirs.get_seq_length():
            for cache in (ours, theirs):
                if name == "crop":
                    cache.crop(-min(argument, cache.get_seq_length() - 1))  # pyright: ignore
                elif name == "reorder":
                    cache.reorder_cache(torch.tensor(argument))
                else:
                    cache.reset()
            if name == "reset":
                # Whether zeros are kept differs between versions of transformers.
                return
        if theirs.layers:
            assert_same(ours, theirs)


def test_rows_of_a_batch_are_repeated_and_selected() -> None:
    ours, theirs = both()
    for layer in range(LAYERS):
        for cache in (ours, theirs):
            with torch.no_grad():
                cache.update(*new_rows(3, seed=layer), layer)
    for cache in (ours, theirs):
        cache.batch_repeat_interleave(2)
    assert_same(ours, theirs)
    for cache in (ours, theirs):
        cache.batch_select_indices(torch.tensor([3, 0]))
    assert_same(ours, theirs)
    with torch.no_grad():
        for cache in (ours, theirs):
            cache.update(*new_rows(1, seed=7), 0)
    assert torch.equal(ours.layers[0].keys, theirs.layers[0].keys)  # pyright: ignore[reportArgumentType]


def test_tokens_are_written_where_they_are_and_memory_grows_seldom() -> None:
    cache, places = PreallocatedCache(1), []
    with torch.no_grad():
        for number in range(300):
            keys, _ = cache.update(*new_rows(1, seed=number), 0)
            places.append(keys.data_ptr())
    assert len(set(places)) <= 10
    assert torch.equal(cache.layers[0].keys[:, :, 123:124], new_rows(1, seed=123)[0])  # pyright: ignore


def test_what_inference_mode_wrote_may_be_continued_without_it() -> None:
    cache = PreallocatedCache(1)
    with torch.inference_mode():
        cache.update(*new_rows(3), 0)
    with torch.no_grad():
        keys, values = cache.update(*new_rows(1, seed=1), 0)
    assert torch.equal(keys, torch.cat([new_rows(3)[0], new_rows(1, seed=1)[0]], 2))
    assert values.shape[2] == 4


@pytest.mark.parametrize("copied", [copy.deepcopy, saved_and_loaded])
def test_nor_does_it_matter_in_which_mode_it_was_copied(
    copied: Callable[[PreallocatedCache], PreallocatedCache],
) -> None:
    cache = PreallocatedCache(1)
    with torch.no_grad():
        # The second makes room for a third.
        cache.update(*new_rows(3), 0)
        cache.update(*new_rows(1, seed=1), 0)
        with torch.inference_mode():
            copy_of_it = copied(cache)
        keys, _ = copy_of_it.update(*new_rows(1, seed=2), 0)
    assert torch.equal(keys, torch.cat([new_rows(3)[0], new_rows(1, seed=1)[0], new_rows(1, seed=2)[0]], 2))


def test_gradients_flow_through_it() -> None:
    ours, theirs = both()
    first, second = (tensor.requires_grad_() for tensor in new_rows(2))
    results = []
    for cache in (ours, theirs):
        cache.update(first, second, 0)
        keys, values = cache.update(first * 2, second * 3, 0)
        results.append(torch.autograd.grad((keys.square() + values).sum(), [first, second]))
    assert all(torch.equal(*pair) for pair in zip(*results, strict=True))


def test_other_sizes_are_refused_as_by_pytorch() -> None:
    cache = PreallocatedCache(1)
    with torch.no_grad():
        cache.update(*new_rows(2), 0)
        with pytest.raises(RuntimeError, match="Sizes of tensors must match"):
            cache.update(*new_rows(1, batch=1), 0)
    assert cache.get_seq_length() == 2


def test_a_copy_has_memory_of_its_own() -> None:
    cache = PreallocatedCache(1)
    with torch.no_grad():
        cache.update(*new_rows(2), 0)
        copied = copy.deepcopy(cache)
        cache.update(*new_rows(1, seed=1), 0)
        keys, _ = copied.update(*new_rows(1, seed=2), 0)
    assert torch.equal(keys[:, :, 2:], new_rows(1, seed=2)[0])
    assert torch.equal(cache.layers[0].keys[:, :, 2:], new_rows(1, seed=1)[0])  # pyright: ignore
