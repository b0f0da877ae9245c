"""The compiled operators as parts of torch: autograd, autocast, compilation, dropout, FLOPs."""

import math
from collections.abc import Callable, Iterator
from functools import partial

import pytest
import torch
from torch import Tensor
from torch.utils.flop_counter import FlopCounterMode

from helpers.errors import refused
from helpers.kernels import attention_inputs, cpu_kernels, random_rotation
from helpers.tensors import assert_all_close, value_and_gradients
from smht import ops
from smht.ops import backend, reference

# PyTorch's compiler uses parts of PyTorch that PyTorch deprecates.
pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")


@pytest.fixture(scope="module", autouse=True)
def chosen_backend() -> Iterator[None]:
    with cpu_kernels():
        yield


def unused(*tensors: Tensor) -> Tensor:
    """Zero, so that every call takes all tensors."""
    return sum((tensor.sum() * 0 for tensor in tensors), torch.zeros(()))


CALLS: dict[str, Callable[..., Tensor]] = {
    "linear": lambda x, q, k, v, o: ops.split_linear(x, q, k.sum(dim=2).flatten()) + unused(v, o),
    "feed_forward": lambda x, q, k, v, o: (
        ops.split_feed_forward(x, q, k, "silu", down_bias=v.sum(dim=2).flatten()) + unused(o)
    ),
    "attention": lambda x, q, k, v, o: ops.split_attention(x, q, k, v, o, is_causal=True),
    "masked attention": lambda x, q, k, v, o: ops.split_attention(x, q, k, v, o, mask=mask_of(x)),
    "rotated attention": lambda x, q, k, v, o: ops.split_attention(x, q, k, v, o, is_causal=True, rotation=ROTATION),
}
PLAIN: dict[str, Callable[..., Tensor]] = {
    "linear": lambda x, q, k, v, o: reference.split_linear(x, q, k.sum(dim=2).flatten()) + unused(v, o),
    "feed_forward": lambda x, q, k, v, o: (
        reference.split_feed_forward(x, q, k, "silu", None, v.sum(dim=2).flatten()) + unused(o)
    ),
    "attention": lambda x, q, k, v, o: reference.split_attention(x, q, k, v, o, True, None, 0.0, q.shape[2] ** -0.5),
    "masked attention": lambda x, q, k, v, o: reference.split_attention(
        x, q, k, v, o, False, mask_of(x), 0.0, q.shape[2] ** -0.5
    ),
    "rotated attention": lambda x, q, k, v, o: reference.split_attention(
        x, q, k, v, o, True, None, 0.0, q.shape[2] ** -0.5, *(half.to(x.device) for half in ROTATION)
    ),
}
ROTATION = random_rotation(2, 7, 6, torch.float32)


def mask_of(x: Tensor) -> Tensor:
    return (torch.arange(x.shape[1]) % 3 != 1).expand(1, 1, 1, -1)


def small_inputs(dtype: torch.dtype = torch.float32) -> list[Tensor]:
    torch.manual_seed(0)
    return attention_inputs(2, 7, 3, 6, dtype)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_opcheck(dtype: torch.dtype) -> None:
    x, q, k, v, o = (tensor.requires_grad_() for tensor in small_inputs(dtype))
    bias, seed = torch.randn(18).to(dtype).requires_grad_(), torch.tensor([5])
    mask = torch.randn(2, 1, 1, 7)
    calls = torch.ops.smht
    for overload, arguments in [
        (calls.split_linear.default, (x, q, bias)),
        (calls.split_linear.default, (x, q, None)),
        (calls.split_feed_forward.default, (x, q, k, "gelu", bias, bias)),
        (calls.split_feed_forward.default, (x, q, k, "relu", None, None)),
        (calls.split_attention.default, (x, q, k, v, o, True, None, 0.0, 0.3, None, None, None)),
        (calls.split_attention.default, (x, q, k, v, o, False, mask, 0.25, 0.3, seed, None, None)),
        (calls.split_attention.default, (x, q, k, v, o, False, mask, 0.25, 0.3, seed, *ROTATION)),
    ]:
        torch.library.opcheck(overload, arguments)
    x, q, k, v, o, bias = (tensor.detach() for tensor in (x, q, k, v, o, bias))
    plain, turned = ((x, q, k, v, o, True, None, 0.0, 0.3, None, *rotation) for rotation in ((None, None), ROTATION))
    y, log_sums = calls.split_attention(*plain)
    for overload, arguments in [
        (calls.split_linear_backward.default, (y, x, q, True)),
        (calls.split_feed_forward_backward.default, (y, x, q, k, "gelu", bias, False)),
        (calls.split_attention_backward.default, (y, *plain, y, log_sums)),
        (calls.split_attention_backward.default, (y, *turned, *calls.split_attention(*turned))),
    ]:
        torch.library.opcheck(overload, arguments)


@pytest.mark.parametrize("name", CALLS)
@pytest.mark.parametrize("autocast", [False, True])
def test_compiles_into_one_graph_with_its_gradients(name: str, autocast: bool) -> None:
    function = CALLS[name]

    def call(*tensors: Tensor) -> Tensor:
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=autocast):
            return function(*tensors)

    torch.compiler.reset()
    compiled = torch.compile(call, fullgraph=True, backend="aot_eager")
    for one, other in zip(
        value_and_gradients(compiled, *small_inputs()), value_and_gradients(call, *small_inputs()), strict=True
    ):
        torch.testing.assert_close(one, other, rtol=1e-2 if autocast else 1e-5, atol=1e-2 if autocast else 1e-5)


@pytest.mark.parametrize("is_rotated", [False, True])
def test_compiles_with_dropout_and_lengths_that_change(is_rotated: bool) -> None:
    torch.compiler.reset()
    compiled = torch.compile(
        partial(ops.split_attention, dropout=0.5), fullgraph=True, backend="aot_eager", dynamic=True
    )
    x, *weights = small_inputs()
    for tokens in (7, 5, 4):
        rotation = tuple(half[:, :tokens] for half in ROTATION) if is_rotated else None
        torch.manual_seed(3)
        ours = compiled(x[:, :tokens], *weights, rotation=rotation)
        torch.manual_seed(3)
        assert torch.equal(ours, ops.split_attention(x[:, :tokens], *weights, dropout=0.5, rotation=rotation))


@pytest.mark.parametrize("name", CALLS)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_autocast_does_as_to_the_reference(name: str, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch) -> None:
    tensors = small_inputs()
    if dtype == torch.float16:
        ops.set_backend("auto")  # float16 goes to the reference itself
        monkeypatch.setitem(ops.BACKENDS, "reference", ORIGINAL_REFERENCE)

    def cast(function: Callable[..., Tensor]) -> Callable[..., Tensor]:
        def call(*given: Tensor) -> Tensor:
            with torch.autocast("cpu", dtype=dtype):
                return function(*given)

        return call

    ours = value_and_gradients(cast(CALLS[name]), *tensors)
    theirs = value_and_gradients(cast(PLAIN[name]), *tensors)
    assert [tensor.dtype for tensor in ours] == [tensor.dtype for tensor in theirs] == [dtype, *[torch.float32] * 5]
    for our, their in zip(ours, theirs, strict=True):
        assert (our - their).norm() <= 0.03 * their.norm() + 0.02
    ops.set_backend("cpu")


ORIGINAL_REFERENCE = ops.BACKENDS["reference"]


@pytest.mark.parametrize("name", CALLS)
def test_second_derivatives_are_those_of_the_reference(name: str) -> None:
    def squared_slopes(function: Callable[..., Tensor]) -> list[Tensor]:
        leaves = [tensor.requires_grad_() for tensor in small_inputs()]
        first = torch.autograd.grad(function(*leaves).square().sum(), leaves, create_graph=True, materialize_grads=True)
        return list(torch.autograd.grad(sum(slope.square().sum() for slope in first), leaves, materialize_grads=True))

    ours = squared_slopes(CALLS[name])
    # The fused kernel of F.scaled_dot_product_attention has no second derivative; the written-out one has.
    with torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.MATH):
        assert_all_close(ours, squared_slopes(PLAIN[name]), tolerance=1e-3)


def test_autocast_takes_whole_numbers_no_more_than_the_reference_does() -> None:
    x, *weights = small_inputs()
    with torch.autocast("cpu", torch.bfloat16):
        assert backend.kernel_for("split_linear", x, weights[0], None) is not None
        assert backend.kernel_for("split_linear", x.long(), weights[0], None) is None


def test_a_second_derivative_with_dropout_is_refused() -> None:
    x, *weights = small_inputs()
    output = ops.split_attention(x.requires_grad_(), *weights, dropout=0.5)
    with refused("no second derivative with dropout", "set_backend('reference')"):
        torch.autograd.grad(output.sum(), x, create_graph=True)


def test_dropout_draws_one_seed_from_the_default_generator() -> None:
    tensors = small_inputs()
    drawn = []
    for seed in (1, 1, 2):
        torch.manual_seed(seed)
        drawn.append(ops.split_attention(*tensors, dropout=0.4))
    assert torch.equal(drawn[0], drawn[1])
    assert not torch.equal(drawn[0], drawn[2])
    assert not torch.equal(drawn[2], ops.split_attention(*tensors, dropout=0.4))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("probability", [0.1, 0.25, 0.9])
def test_dropout_keeps_its_share_of_the_weights_and_scales_them_up(dtype: torch.dtype, probability: float) -> None:
    tokens, heads = 128, 4
    x = torch.ones(4, tokens, heads, dtype=dtype)
    zero, one = torch.zeros(heads, 1, 1, dtype=dtype), torch.ones(heads, 1, 1, dtype=dtype)
    torch.manual_seed(0)
    # Every weight is 1/T, so the output counts those that were kept.
    kept = ops.split_attention(x, zero, zero, one, one, dropout=probability).float() * tokens * (1 - probability)
    if dtype == torch.float32:
        torch.testing.assert_close(kept, kept.round(), rtol=0, atol=1e-3)
    draws = kept.numel() * tokens
    spread = math.sqrt(probability * (1 - probability) / draws)
    assert abs(kept.mean().item() / tokens - (1 - probability)) < 4 * spread + (0 if dtype == torch.float32 else 1e-3)
    # Rows, heads and sequences are drawn apart, so their counts spread as those of independent draws do.
    expected = math.sqrt(tokens * probability * (1 - probability))
    assert 0.8 * expected < kept.std().item() < 1.2 * expected


def test_neighbouring_draws_are_independent() -> None:
    tokens = 256
    torch.manual_seed(0)
    x, zero = torch.eye(tokens).expand(1, tokens, tokens), torch.zeros(1, tokens, tokens)
    one = torch.eye(tokens).expand(1, tokens, tokens)
    # One head as wide as there are tokens, values one-hot: the output is the matrix of weights itself.
    kept = (ops.split_attention(x, zero, zero, one, one, dropout=0.5)[0] > 0).double() - 0.5
    for shift in (1, 16, 64, 128):
        for axis in (0, 1):
            assert abs((kept * kept.roll(shift, axis)).mean().item()) < 4 * 0.25 / tokens


@pytest.mark.parametrize("is_rotated", [False, True])
def test_gradients_under_dropout_are_those_of_what_forward_computed(is_rotated: bool) -> None:
    tokens, width = 140, 8
    torch.manual_seed(0)
    x, *weights = attention_inputs(1, tokens, 2, width, torch.float32)
    rotation = random_rotation(1, tokens, width, torch.float32) if is_rotated else None

    def drawn_alike(*given: Tensor) -> Tensor:
        torch.manual_seed(3)
        return ops.split_attention(*given, dropout=0.3, rotation=rotation)

    tensors = [x, *weights]
    _, *gradients = value_and_gradients(drawn_alike, *tensors)
    weighting = torch.randn(x.shape, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    for place in range(5):
        direction = torch.randn_like(tensors[place]) * 2e-3
        moved = [
            drawn_alike(*(tensor + sign * direction if at == place else tensor for at, tensor in enumerate(tensors)))
            for sign in (1, -1)
        ]
        measured = ((moved[0].double() - moved[1].double()) * weighting).sum().item() / 2
        expected = (gradients[place].double() * direction.double()).sum().item()
        assert math.isclose(measured, expected, rel_tol=2e-2, abs_tol=2e-3), place


def test_flops_are_those_of_the_reference() -> None:
    x, *weights = (tensor.requires_grad_() for tensor in small_inputs())
    for name in ("linear", "feed_forward", "attention", "rotated attention"):
        with FlopCounterMode(display=False) as forward:
            output = CALLS[name](x, *weights)
        with FlopCounterMode(display=False) as backward:
            output.sum().backward()
        on_meta = [tensor.detach().to("meta").requires_grad_() for tensor in (x, *weights)]
        with (
            FlopCounterMode(display=False) as plain,
            torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.MATH),
        ):
            PLAIN[name](*on_meta)
        assert forward.get_total_flops() == plain.get_total_flops() > 0, name
        assert backward.get_total_flops() >= 2 * forward.get_total_flops(), name


def test_transforms_of_functions_take_the_reference(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(ops.BACKENDS, "reference", ORIGINAL_REFERENCE)
    x, *weights = small_inputs()
    single = torch.func.vmap(lambda row: ops.split_linear(row, weights[0]))(x)
    torch.testing.assert_close(single, ops.split_linear(x, weights[0]), rtol=1e-5, atol=1e-5)
    _, tangent = torch.func.jvp(lambda x: ops.split_feed_forward(x, *weights[:2]), (x,), (torch.ones_like(x),))
    step = 1e-3
    moved = [ops.split_feed_forward(x + sign * step, *weights[:2]) for sign in (1, -1)]
    torch.testing.assert_close(tangent, (moved[0] - moved[1]) / (2 * step), rtol=1e-2, atol=1e-2)


@pytest.mark.parametrize(
    "unfit",
    [
        tuple(half.double() for half in ROTATION),
        tuple(half.half() for half in ROTATION),
        tuple(half.clone().requires_grad_() for half in ROTATION),
    ],
    ids=["float64", "float16", "gradient"],
)
def test_a_rotation_that_the_kernels_do_not_take_goes_to_the_reference(
    unfit: tuple[Tensor, Tensor], monkeypatch: pytest.MonkeyPatch
) -> None:
    x, *weights = small_inputs()
    expected = ops.split_attention(x, *weights, rotation=ROTATION)
    monkeypatch.setitem(ops.BACKENDS, "reference", ORIGINAL_REFERENCE)
    monkeypatch.setattr(torch.ops.smht, "split_attention", None)
    output = ops.split_attention(x, *weights, rotation=unfit)
    torch.testing.assert_close(output, expected, rtol=1e-2, atol=1e-2)
    if unfit[0].requires_grad:
        assert all(slope.any() for slope in torch.autograd.grad(output.square().sum(), unfit))


def philox(counter: list[int], key: list[int]) -> list[int]:
    """Philox 4x32-10 as its article writes it, one counter at a time."""
    for _ in range(10):
        first, second = 0xD2511F53 * counter[0], 0xCD9E8D57 * counter[2]
        counter = [
            (second >> 32) ^ counter[1] ^ key[0],
            second & 0xFFFFFFFF,
            (first >> 32) ^ counter[3] ^ key[1],
            first & 0xFFFFFFFF,
        ]
        key = [(key[0] + 0x9E3779B9) & 0xFFFFFFFF, (key[1] + 0xBB67AE85) & 0xFFFFFFFF]
    return counter


def test_what_is_dropped_is_the_stated_function_of_seed_query_and_key() -> None:
    # The first known answer that the authors publish.
    assert philox([0] * 4, [0] * 2) == [0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8]
    tokens, seed, probability = 80, 2**40 + 7, 0.3
    one_hot = torch.eye(tokens).expand(1, tokens, tokens)
    zero = torch.zeros(1, tokens, tokens)
    weights, _ = torch.ops.smht.split_attention(
        one_hot, zero, zero, one_hot, one_hot, False, None, probability, 1.0, torch.tensor([seed]), None, None
    )
    threshold, key = int(probability * 2**32), [seed & 0xFFFFFFFF, seed >> 32]
    for query in (0, 1, 79):
        drawn = [philox([block * 16 + lane, 0, query, 0], key) for block in (0, 1) for lane in range(16)]
        numbers = [drawn[16 * block + lane][word] for block in (0, 1) for word in range(4) for lane in range(16)]
        expected = [number >= threshold for number in numbers[:tokens]]
        assert (weights[0, query] > 0).tolist() == expected
