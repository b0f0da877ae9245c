"""Position encodings against the seed's formula and against transformers' T5 and Llama."""

from collections.abc import Iterator

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor
from transformers import LlamaConfig, T5Config
from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding, apply_rotary_pos_emb
from transformers.models.t5.modeling_t5 import T5Attention

from helpers.errors import refused
from helpers.tensors import assert_all_close
from smht.layers import PositionEncoding, make_position_encoding
from smht.layers.position import (
    POSITION_ENCODINGS,
    LearnedPositions,
    RelativePositions,
    RotaryPositions,
    SinusoidalPositions,
    Sizes,
    TabulatedPositions,
    relative_buckets,
    rotate,
)


@pytest.fixture
def float64_by_default() -> Iterator[None]:
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(torch.float32)


def seeds_positional_encoding(tokens: int, width: int) -> np.ndarray:
    """Seed 001's function; its last line for odd widths too, where the cosines are one fewer."""
    pos = np.arange(tokens)[:, None]
    dua_i = np.arange(0, width, 2)[None, :]
    sudut = pos / 10000 ** (dua_i / width)
    pe = np.zeros((tokens, width))
    pe[:, 0::2] = np.sin(sudut)
    pe[:, 1::2] = np.cos(sudut)[:, : width // 2]
    return pe


@given(tokens=st.integers(1, 40), width=st.integers(1, 33))
def test_sinusoidal_positions_are_the_seeds(tokens: int, width: int) -> None:
    positions = torch.arange(tokens)[None].expand(2, -1)
    embedded = SinusoidalPositions(tokens, width).embed(positions)
    expected = torch.tensor(seeds_positional_encoding(tokens, width)).float()
    assert embedded.shape == (2, tokens, width)
    assert_all_close([*embedded], [expected, expected], tolerance=1e-7)


@pytest.mark.parametrize("width", [16, 15, 1])
@pytest.mark.usefixtures("float64_by_default")
def test_sinusoidal_positions_in_double_precision(width: int) -> None:
    embedded = SinusoidalPositions(5000, width).embed(torch.arange(5000))
    assert_all_close([embedded], [torch.tensor(seeds_positional_encoding(5000, width))], tolerance=1e-11)


def test_angles_are_computed_in_double_precision_whatever_the_table_holds() -> None:
    # An angle of 50 000 rounded to float32 is off by 0.002.
    embedded = SinusoidalPositions(50_000, 8).embed(torch.arange(50_000))
    expected = torch.tensor(seeds_positional_encoding(50_000, 8))
    assert (embedded.double() - expected).abs().max() < 1e-7


def test_embeddings_go_by_position_not_by_column() -> None:
    places = torch.tensor([[3, 0, 7], [7, 7, 1]])
    for encoding in (SinusoidalPositions(8, 6), LearnedPositions(8, 6)):
        table = encoding.embed(torch.arange(8))
        assert torch.equal(encoding.embed(places), table[places])


def t5_attention(heads: int, is_causal: bool) -> T5Attention:
    config = T5Config(d_model=4 * heads, d_kv=4, num_heads=heads, is_decoder=is_causal)
    return T5Attention(config, has_relative_attention_bias=True)


@given(
    relative=st.lists(st.integers(-10_000, 10_000) | st.integers(-140, 140), min_size=1, max_size=40),
    is_causal=st.booleans(),
)
def test_buckets_are_t5s(relative: list[int], is_causal: bool) -> None:
    distances = torch.tensor(relative)
    theirs = T5Attention._relative_position_bucket(distances, bidirectional=not is_causal)
    assert torch.equal(relative_buckets(distances, is_causal), theirs)


@given(
    heads=st.integers(1, 4),
    tokens=st.integers(1, 150),
    past=st.integers(0, 150),
    is_causal=st.booleans(),
    seed=st.integers(0, 2**32),
)
def test_the_bias_of_relative_positions_is_t5s(heads: int, tokens: int, past: int, is_causal: bool, seed: int) -> None:
    torch.manual_seed(seed)
    ours, theirs = RelativePositions(heads, is_causal), t5_attention(heads, is_causal)
    ours.load_state_dict({"relative_attention_bias.weight": theirs.relative_attention_bias.weight})
    relative = torch.arange(past + tokens)[None, :] - (torch.arange(tokens) + past)[:, None]
    expected = theirs.compute_bias(tokens, past + tokens, past_seen_tokens=past)[0]
    assert torch.equal(ours.bias(relative), expected)


def llama_rotation(head_dim: int, positions: Tensor) -> tuple[Tensor, Tensor]:
    """Cosines and sines `[B, T, K]` of Llama's class, which computes them in float32."""
    config = LlamaConfig(hidden_size=head_dim, num_attention_heads=1, max_position_embeddings=64)
    return LlamaRotaryEmbedding(config)(torch.zeros(1), positions)


@given(
    heads=st.integers(1, 3),
    half=st.integers(1, 6),
    positions=st.lists(st.integers(0, 63), min_size=1, max_size=9),
    seed=st.integers(0, 2**32),
)
def test_rotary_positions_are_llamas(heads: int, half: int, positions: list[int], seed: int) -> None:
    torch.manual_seed(seed)
    places = torch.tensor([positions, positions[::-1]])
    query, key = torch.randn(2, 2, heads, len(positions), 2 * half).unbind()
    rotation = RotaryPositions(64, 2 * half).rotation(places)
    assert rotation[0].shape == rotation[1].shape == (2, len(positions), half)
    expected = apply_rotary_pos_emb(query, key, *llama_rotation(2 * half, places))
    assert_all_close([rotate(query, *rotation), rotate(key, *rotation)], [*expected], tolerance=2e-5)


@given(
    half=st.integers(1, 6),
    places=st.tuples(st.integers(0, 20), st.integers(0, 20)),
    shift=st.integers(0, 40),
    seed=st.integers(0, 2**32),
)
def test_scores_of_turned_queries_and_keys_depend_on_the_distance_only(
    half: int, places: tuple[int, int], shift: int, seed: int
) -> None:
    torch.manual_seed(seed)
    rotary = RotaryPositions(64, 2 * half).double()
    query, key = torch.randn(2, 1, 1, 1, 2 * half, dtype=torch.float64).unbind()

    def score(query_place: int, key_place: int) -> Tensor:
        turned = [
            rotate(x, *rotary.rotation(torch.tensor([[place]])))
            for x, place in ((query, query_place), (key, key_place))
        ]
        return (turned[0] * turned[1]).sum()

    first, second = places
    assert_all_close([score(first, second)], [score(first + shift, second + shift)], tolerance=1e-5)
    assert_all_close([score(first, first)], [(query * key).sum()], tolerance=1e-5)


def test_turning_keeps_lengths_and_tells_distances_apart() -> None:
    x = torch.ones(1, 2, 8, 6)
    turned = rotate(x, *RotaryPositions(8, 6).rotation(torch.arange(8)[None]))
    assert_all_close([turned.norm(dim=-1)], [x.norm(dim=-1)], tolerance=1e-6)
    scores = (turned[0, 0, 0] * turned[0, 0]).sum(-1)
    assert (scores[:-1] - scores[1:] > 0.1).sum() >= 3


@pytest.mark.parametrize("kind", ["sinusoidal", "rotary"])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float16, torch.bfloat16])
def test_tables_follow_the_modules_dtype(kind: str, dtype: torch.dtype) -> None:
    encoding = make_position_encoding(kind, Sizes(40, 12, 2, is_causal=True))
    assert isinstance(encoding, TabulatedPositions)
    exact = {name: table.double() for name, table in encoding.compute_tables().items()}
    encoding.to(dtype)
    precision = max(torch.finfo(dtype).eps, 1e-7)
    for name, table in exact.items():
        assert getattr(encoding, name).dtype == dtype
        assert (getattr(encoding, name).double() - table).abs().max() <= precision
    assert not encoding.state_dict() and not list(encoding.parameters())


@pytest.mark.parametrize("kind", ["sinusoidal", "rotary"])
def test_tables_can_be_computed_when_made_on_the_meta_device(kind: str) -> None:
    sizes = Sizes(9, 12, 2, is_causal=True)
    with torch.device("meta"):
        encoding = make_position_encoding(kind, sizes)
    here = make_position_encoding(kind, sizes)
    assert isinstance(encoding, TabulatedPositions) and isinstance(here, TabulatedPositions)
    tables = encoding.compute_tables()
    assert torch.equal(tables["cosines"], here.cosines) and torch.equal(tables["sines"], here.sines)


PLACES = {
    "learned": (True, False, False),
    "sinusoidal": (True, False, False),
    "relative": (False, False, True),
    "rotary": (False, True, False),
    "none": (False, False, False),
}
"""Whether it acts on the embeddings, on queries and keys, on the scores."""


@pytest.mark.parametrize("kind", POSITION_ENCODINGS)
@pytest.mark.parametrize(("heads", "head_dim"), [(1, 2), (3, 4)])
def test_each_kind_acts_in_its_place(kind: str, heads: int, head_dim: int) -> None:
    encoding = make_position_encoding(kind, Sizes(11, heads * head_dim, heads, is_causal=False))
    assert type(encoding) is POSITION_ENCODINGS[kind]
    positions = torch.arange(5)[None]
    added, rotation, bias = encoding.embed(positions), encoding.rotation(positions), encoding.bias
    assert (added is not None, rotation is not None, bias is not None) == PLACES[kind]
    if added is not None:
        assert added.shape == (1, 5, heads * head_dim)
    if rotation is not None:
        assert rotation[0].shape == (1, 5, head_dim // 2)
    if bias is not None:
        assert bias(torch.arange(-4, 5).view(3, 3)).shape == (heads, 3, 3)


def test_parameters_are_those_of_the_table() -> None:
    sizes = Sizes(11, 12, 3, is_causal=True)
    counts = {
        kind: sum(parameter.numel() for parameter in make_position_encoding(kind, sizes).parameters())
        for kind in POSITION_ENCODINGS
    }
    assert counts == {"learned": 132, "sinusoidal": 0, "relative": 96, "rotary": 0, "none": 0}


def test_a_head_of_odd_width_is_refused() -> None:
    with refused("rotary positions turn channels in pairs", "3 channels wide"):
        RotaryPositions(8, 3)
    with refused("rotary positions turn channels in pairs", "1 channels wide"):
        make_position_encoding("rotary", Sizes(8, 4, 4, is_causal=True))


@pytest.mark.parametrize(
    ("kind", "offer"), [("rotery", "did you mean rotary"), ("sinus", "did you mean sinusoidal"), ("xyz", "choose from")]
)
def test_an_unknown_kind_is_refused_with_what_there_is(kind: str, offer: str) -> None:
    with refused(f"position_embedding = {kind!r}: ", offer):
        make_position_encoding(kind, Sizes(8, 4, 2, is_causal=True))


def test_no_encoding_is_a_module_without_effect() -> None:
    encoding = PositionEncoding()
    assert not encoding.state_dict()
    assert repr(SinusoidalPositions(7, 4)) == "SinusoidalPositions(7, 4)"
