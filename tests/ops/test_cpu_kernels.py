"""The CPU kernels against float64: every output and gradient, over shapes that fill no tile or many."""

import subprocess
import sys
from collections.abc import Callable, Iterator
from functools import partial

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from helpers.kernels import assert_rounds_like, attention_inputs, cpu_kernels, random_rotation
from helpers.tensors import value_and_gradients
from smht import ops
from smht.ops import reference
from smht.ops.activation import ACTIVATIONS

DTYPES = st.sampled_from([torch.float32, torch.bfloat16])
SEEDS = st.integers(0, 2**32)


@pytest.fixture(scope="module", autouse=True)
def chosen_backend() -> Iterator[None]:
    with cpu_kernels():
        yield


def plain_attention(
    *tensors: Tensor,
    is_causal: bool = False,
    mask: Tensor | None = None,
    scale: float = 0.3,
    rotation: tuple[Tensor, Tensor] | None = None,
) -> Tensor:
    """The reference, with the mask in the form that the contract hands on."""
    if mask is not None:
        mask = mask[(None,) * (4 - mask.dim())]
        mask = mask if mask.dtype == torch.bool else mask.to(tensors[0].dtype)
    return reference.split_attention(*tensors, is_causal, mask, 0.0, scale, *(rotation or ()))


@settings(max_examples=40, derandomize=True)
@given(
    tokens=st.integers(1, 130),
    heads=st.integers(1, 6),
    width=st.integers(1, 40),
    hidden=st.integers(1, 70),
    activation=st.sampled_from(sorted(ACTIVATIONS)),
    biases=st.tuples(st.booleans(), st.booleans()),
    dtype=DTYPES,
    seed=SEEDS,
)
def test_feed_forward(
    tokens: int,
    heads: int,
    width: int,
    hidden: int,
    activation: str,
    biases: tuple[bool, bool],
    dtype: torch.dtype,
    seed: int,
) -> None:
    torch.manual_seed(seed)
    shapes = [(tokens, heads * width), (heads, width, hidden), (heads, hidden, width)]
    x, up, down = (torch.randn(shape).to(dtype) for shape in shapes)
    tensors = [x, up / width**0.5, down / hidden**0.5]
    tensors += [
        torch.randn(heads * size).to(dtype) for size, given in zip((hidden, width), biases, strict=True) if given
    ]

    def call(function: Callable[..., Tensor], *given: Tensor) -> Tensor:
        rest = iter(given[3:])
        up_bias, down_bias = (next(rest) if bias else None for bias in biases)
        return function(*given[:3], activation, up_bias, down_bias)

    assert_rounds_like(partial(call, ops.split_feed_forward), partial(call, reference.split_feed_forward), *tensors)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize(
    ("tokens", "heads", "width", "hidden"), [(1100, 2, 64, 256), (5, 1, 100, 700), (700, 12, 1, 1)]
)
def test_feed_forward_of_many_tiles(tokens: int, heads: int, width: int, hidden: int, dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    tensors = [
        torch.randn(tokens, heads * width).to(dtype),
        (torch.randn(heads, width, hidden) / width**0.5).to(dtype),
        (torch.randn(heads, hidden, width) / hidden**0.5).to(dtype),
    ]
    plain = partial(reference.split_feed_forward, activation="gelu", up_bias=None, down_bias=None)
    assert_rounds_like(ops.split_feed_forward, plain, *tensors)


@pytest.mark.parametrize("activation", sorted(ACTIVATIONS))
def test_activations_of_any_number(activation: str) -> None:
    x = torch.cat([torch.linspace(-30, 30, 4001), torch.tensor([0.0, -0.0, 1e-30, -1e-30, 400.0, -400.0])])[:, None]

    def call(function: Callable[..., Tensor], x: Tensor) -> Tensor:
        one = torch.ones(1, 1, 1, dtype=x.dtype)
        return function(x, one, one, activation, None, None)

    assert_rounds_like(partial(call, ops.split_feed_forward), partial(call, reference.split_feed_forward), x)
    assert call(ops.split_feed_forward, torch.full((1, 1), torch.nan)).isnan().all()


@settings(derandomize=True)
@given(
    tokens=st.integers(1, 130),
    heads=st.integers(1, 6),
    block=st.tuples(st.integers(1, 40), st.integers(1, 40)),
    bias=st.booleans(),
    dtype=DTYPES,
    seed=SEEDS,
)
def test_linear(tokens: int, heads: int, block: tuple[int, int], bias: bool, dtype: torch.dtype, seed: int) -> None:
    torch.manual_seed(seed)
    tensors = [torch.randn(tokens, heads * block[0]), torch.randn(heads, *block), torch.randn(heads * block[1])]
    tensors = [tensor.to(dtype) for tensor in tensors[: 2 + bias]]
    plain = reference.split_linear if bias else partial(reference.split_linear, bias=None)
    assert_rounds_like(ops.split_linear, plain, *tensors)


MASKINGS = st.sampled_from(["none", "causal", "boolean", "padding", "float", "bfloat16"])


def random_mask(masking: str, batch: int, tokens: int, heads: int) -> Tensor | None:
    return {
        "boolean": lambda: (torch.rand(batch, 1, tokens, tokens) < 0.5) | torch.eye(tokens, dtype=torch.bool),
        "padding": lambda: torch.arange(tokens) >= torch.randint(tokens, (batch, 1, 1, 1)),
        "float": lambda: torch.randn(heads, 1, tokens),
        "bfloat16": lambda: torch.randn(tokens, tokens).bfloat16(),
    }.get(masking, lambda: None)()


@settings(max_examples=60, derandomize=True)
@given(
    batch=st.integers(1, 3),
    tokens=st.integers(1, 70),
    heads=st.integers(1, 6),
    width=st.integers(1, 40),
    masking=MASKINGS,
    dtype=DTYPES,
    seed=SEEDS,
)
def test_attention(
    batch: int, tokens: int, heads: int, width: int, masking: str, dtype: torch.dtype, seed: int
) -> None:
    torch.manual_seed(seed)
    options = {"is_causal": masking == "causal", "mask": random_mask(masking, batch, tokens, heads), "scale": 0.3}
    tensors = attention_inputs(batch, tokens, heads, width, dtype)
    assert_rounds_like(partial(ops.split_attention, **options), partial(plain_attention, **options), *tensors)


@settings(max_examples=60, derandomize=True)
@given(
    batch=st.integers(1, 3),
    tokens=st.integers(1, 70),
    heads=st.integers(1, 6),
    half=st.integers(1, 36),
    masking=MASKINGS,
    one_for_all=st.booleans(),
    dtype=DTYPES,
    rotation_dtype=DTYPES,
    seed=SEEDS,
)
def test_rotated_attention(
    batch: int,
    tokens: int,
    heads: int,
    half: int,
    masking: str,
    one_for_all: bool,
    dtype: torch.dtype,
    rotation_dtype: torch.dtype,
    seed: int,
) -> None:
    torch.manual_seed(seed)
    options = {
        "is_causal": masking == "causal",
        "mask": random_mask(masking, batch, tokens, heads),
        "scale": 0.3,
        "rotation": random_rotation(1 if one_for_all else batch, tokens, 2 * half, rotation_dtype),
    }
    tensors = attention_inputs(batch, tokens, heads, 2 * half, dtype)
    assert_rounds_like(partial(ops.split_attention, **options), partial(plain_attention, **options), *tensors)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("shape", [(2, 300, 2, 64), (1, 257, 3, 34), (1, 129, 1, 130), (3, 200, 4, 2)])
@pytest.mark.parametrize("is_causal", [False, True])
def test_rotated_attention_of_many_tiles(shape: tuple[int, int, int, int], is_causal: bool, dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    batch, tokens, _, width = shape
    rotation = random_rotation(batch, tokens, width, torch.float32)
    options = {"is_causal": is_causal, "scale": width**-0.5, "rotation": rotation}
    tensors = attention_inputs(*shape, dtype)
    assert_rounds_like(partial(ops.split_attention, **options), partial(plain_attention, **options), *tensors)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("shape", [(2, 300, 2, 64), (1, 257, 3, 33), (1, 129, 1, 129), (3, 200, 4, 1)])
@pytest.mark.parametrize("masking", ["none", "causal", "padding"])
def test_attention_of_many_tiles(shape: tuple[int, int, int, int], masking: str, dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    mask = random_mask(masking, *shape[:3])
    options = {"is_causal": masking == "causal", "mask": mask, "scale": shape[3] ** -0.5}
    tensors = attention_inputs(*shape, dtype)
    assert_rounds_like(partial(ops.split_attention, **options), partial(plain_attention, **options), *tensors)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_large_scores_neither_overflow_nor_lose_the_softmax(dtype: torch.dtype) -> None:
    options = {"is_causal": True, "scale": 1.0}
    our_error, their_error = 0.0, 0.0
    # A single draw says little: which of two nearly equal scores wins is a matter of luck.
    for seed in range(8):
        torch.manual_seed(seed)
        x, *weights = attention_inputs(1, 200, 2, 16, dtype)
        tensors = [x * 20, *weights]
        ours = value_and_gradients(partial(ops.split_attention, **options), *tensors)
        assert all(tensor.isfinite().all() for tensor in ours)
        exact = plain_attention(*(tensor.double() for tensor in tensors), **options)
        our_error += (ours[0] - exact).norm().item()
        their_error += (plain_attention(*tensors, **options) - exact).norm().item()
    assert our_error <= 2 * their_error


@pytest.mark.parametrize("is_rotated", [False, True])
@pytest.mark.parametrize("which", range(5))
def test_a_number_of_attention_that_is_none_shows(which: int, is_rotated: bool) -> None:
    torch.manual_seed(0)
    tensors = attention_inputs(1, 150, 2, 8, torch.float32)
    tensors[which].view(-1)[5] = torch.nan
    options = {"is_causal": True, "scale": 0.3, "rotation": random_rotation(1, 150, 8, torch.float32)}
    if not is_rotated:
        del options["rotation"]
    ours, theirs = ops.split_attention(*tensors, **options), plain_attention(*tensors, **options)
    # All of a head at once, where the product of two weights is what has it.
    assert (ours.isnan() >= theirs.isnan()).all() and not ours.isnan().all()


@pytest.mark.parametrize("additive", [False, True])
def test_a_query_that_may_see_nothing_gets_what_the_reference_gives(additive: bool) -> None:
    torch.manual_seed(0)
    tensors = attention_inputs(2, 150, 2, 8, torch.float32)
    mask = torch.ones(2, 1, 150, 150, dtype=torch.bool)
    mask[0, :, 3] = False
    mask[1, :, 100:] = False
    if additive:
        mask = torch.zeros(mask.shape).masked_fill(~mask, -torch.inf)
    ours = value_and_gradients(partial(ops.split_attention, mask=mask, scale=0.3), *tensors)
    theirs = value_and_gradients(partial(plain_attention, mask=mask), *tensors)
    assert (ours[0][0, 3] == 0).all() and (ours[0][1, 100:] == 0).all()
    for our, their in zip(ours, theirs, strict=True):
        torch.testing.assert_close(our, their, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("is_rotated", [False, True])
def test_tokens_of_another_row_or_head_never_leak(is_rotated: bool) -> None:
    torch.manual_seed(0)
    x, *weights = attention_inputs(2, 60, 3, 16, torch.float32)
    rotation = random_rotation(2, 60, 16, torch.float32) if is_rotated else None
    whole = ops.split_attention(x, *weights, is_causal=True, rotation=rotation)
    x[1] = torch.nan
    x[0, :, 16:32] = torch.nan
    x[0, 50:] = torch.nan
    changed = ops.split_attention(x, *weights, is_causal=True, rotation=rotation)
    for head in (0, 2):
        chunk = slice(16 * head, 16 * head + 16)
        # The keys after a query still stand beside it in a tile, times weights of zero.
        assert torch.equal(changed[0, :48, chunk], whole[0, :48, chunk])
    assert changed[1].isnan().all() and changed[0, :, 16:32].isnan().all()


@pytest.mark.parametrize("function", ["linear", "feed_forward", "attention"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_layouts_do_not_change_results(function: str, dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    x, *weights = attention_inputs(3, 50, 3, 20, dtype)
    call = {
        "linear": lambda x, q, k, v, o: ops.split_linear(x, q),
        "feed_forward": lambda x, q, k, v, o: ops.split_feed_forward(x, q, k),
        "attention": lambda x, q, k, v, o: ops.split_attention(x, q, k, v, o),
    }[function]
    plain = call(x, *weights)
    views = [
        x.transpose(0, 1).contiguous().transpose(0, 1),
        torch.cat([x, x], dim=-1)[..., :60],
        x.transpose(1, 2).contiguous().transpose(1, 2),
        torch.stack([x, x])[1],
    ]
    turned = [weight.transpose(1, 2).contiguous().transpose(1, 2) for weight in weights]
    for view in views:
        assert torch.equal(call(view, *turned), plain)
    x.requires_grad_()
    call(x, *weights).sum().backward()  # an expanded gradient
    expected = x.grad
    assert expected is not None
    x.grad = None
    call(x, *weights).backward(torch.ones_like(x))
    assert torch.equal(x.grad, expected)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_layouts_of_a_rotation_do_not_change_results(dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    tensors = attention_inputs(3, 50, 3, 20, dtype)
    one = random_rotation(1, 50, 20, dtype)
    expected = value_and_gradients(partial(ops.split_attention, rotation=one), *tensors)
    for view in (
        lambda half: half.expand(3, -1, -1),
        lambda half: half.repeat(3, 1, 1),
        lambda half: half.transpose(1, 2).contiguous().transpose(1, 2),
        lambda half: torch.cat([half, half], dim=-1)[..., :10],
    ):
        rotation = tuple(map(view, one))
        ours = value_and_gradients(partial(ops.split_attention, rotation=rotation), *tensors)
        assert all(map(torch.equal, ours, expected))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_results_do_not_depend_on_the_number_of_threads(dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    x, *weights = attention_inputs(5, 220, 3, 24, dtype)
    up = torch.randn(3, 24, 50).to(dtype)
    rotation = random_rotation(5, 220, 24, dtype)

    def everything(x: Tensor, q: Tensor, k: Tensor, v: Tensor, o: Tensor, up: Tensor) -> Tensor:
        torch.manual_seed(1)
        x = ops.split_attention(x, q, k, v, o, is_causal=True, dropout=0.2)
        x = ops.split_attention(x, q, k, v, o, is_causal=True, dropout=0.2, rotation=rotation)
        return ops.split_linear(ops.split_feed_forward(x, up, up.transpose(1, 2)), q)

    before = torch.get_num_threads()
    results = []
    try:
        for threads in (1, 2, 3):
            torch.set_num_threads(threads)
            results.append(value_and_gradients(everything, x, *weights, up))
    finally:
        torch.set_num_threads(before)
    for others in results[1:]:
        assert all(torch.equal(one, other) for one, other in zip(results[0], others, strict=True))


@pytest.mark.parametrize(("batch", "tokens"), [(0, 3), (2, 0)])
def test_nothing_in_gives_nothing_out_and_zero_gradients(batch: int, tokens: int) -> None:
    x, *weights = attention_inputs(batch, tokens, 2, 4, torch.float32)
    rotation = random_rotation(1, tokens, 4, torch.float32)
    calls: list[tuple[Callable[..., Tensor], list[Tensor]]] = [
        (ops.split_attention, [x, *weights]),
        (partial(ops.split_attention, rotation=rotation), [x, *weights]),
        (ops.split_feed_forward, [x, *weights[:2]]),
        (ops.split_linear, [x, weights[0], torch.zeros(8)]),
    ]
    for function, tensors in calls:
        output, *gradients = value_and_gradients(function, *tensors)
        assert output.shape == (batch, tokens, 8)
        assert all((gradient == 0).all() for gradient in gradients)


LITTLE_MEMORY = """
import resource
import torch
from smht import ops

ops.set_backend("cpu")
torch.set_num_threads(1)
weights = [torch.ones(1, 256, 256)] * 4
x = torch.ones(1, 16, 256)
before = ops.split_attention(x, *weights)
long = torch.ones(1, 1, 256).expand(1, 100_000, 256)
size = int(open("/proc/self/statm").read().split()[0]) * resource.getpagesize()
resource.setrlimit(resource.RLIMIT_AS, (size + 250_000_000, resource.RLIM_INFINITY))
try:
    ops.split_attention(long, *weights, is_causal=True)
    raise SystemExit("there was room")
except (MemoryError, RuntimeError):
    pass
assert torch.equal(ops.split_attention(x, *weights), before)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="reads how much memory a process has from /proc")
def test_after_too_large_a_call_a_small_one_runs() -> None:
    done = subprocess.run([sys.executable, "-c", LITTLE_MEMORY], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
