"""Which calls `auto` leaves to PyTorch, as `benchmarks/sweep.py` found; nothing is computed here."""

import pytest
import torch
from torch import Tensor

from smht.ops import cpu_backend

SPLIT_OPS = ("split_linear", "split_feed_forward", "split_attention")
DTYPES = (torch.float32, torch.bfloat16)
TRAINED = [(4, 512, 12, 64), (8, 256, 8, 32), (16, 128, 4, 48)]
"""Sequences, tokens, heads, head width: of the blocks that are measured, and of the model that `smht train` trains."""


@pytest.fixture(scope="module", autouse=True)
def chosen_backend() -> None:
    """No matter here: once is enough."""


def is_worthwhile(op: str, shape: tuple[int, int, int, int], dtype: torch.dtype = torch.float32) -> bool:
    batch, tokens, heads, width = shape

    def tensor(*sizes: int) -> Tensor:
        return torch.empty(sizes, dtype=dtype, device="meta")

    x, square = tensor(batch, tokens, heads * width), tensor(heads, width, width)
    arguments = {
        "split_linear": (x, square, None),
        "split_feed_forward": (x, tensor(heads, width, 4 * width), tensor(heads, 4 * width, width), "gelu", None, None),
        "split_attention": (x, square, square, square, square, True, None, 0.0, 1.0),
    }[op]
    return cpu_backend.WORTHWHILE[op].is_given(arguments)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", TRAINED)
@pytest.mark.parametrize("op", ["split_feed_forward", "split_attention"])
def test_training_runs_on_kernels(op: str, shape: tuple[int, int, int, int], dtype: torch.dtype) -> None:
    assert is_worthwhile(op, shape, dtype)


@pytest.mark.parametrize(
    ("op", "shape", "dtype"),
    [
        ("split_linear", (4, 127, 12, 64), torch.float32),
        ("split_linear", (4, 512, 12, 48), torch.float32),
        ("split_linear", (4, 512, 1, 64), torch.float32),
        ("split_linear", (4, 512, 12, 64), torch.bfloat16),
        ("split_feed_forward", (1, 31, 12, 8), torch.float32),
        ("split_feed_forward", (4, 512, 1, 64), torch.float32),
        ("split_feed_forward", (1, 511, 12, 96), torch.float32),
        ("split_feed_forward", (4, 512, 12, 24), torch.bfloat16),
        ("split_feed_forward", (1, 511, 12, 64), torch.bfloat16),
        ("split_attention", (512, 1, 12, 8), torch.float32),
        ("split_attention", (64, 7, 12, 8), torch.float32),
        ("split_attention", (64, 31, 12, 64), torch.float32),
        ("split_attention", (1, 95, 12, 64), torch.float32),
        ("split_attention", (1, 512, 1, 64), torch.float32),
    ],
)
def test_what_pytorch_does_faster_is_left_to_it(op: str, shape: tuple[int, int, int, int], dtype: torch.dtype) -> None:
    assert not is_worthwhile(op, shape, dtype)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("op", SPLIT_OPS)
def test_nothing_is_refused(op: str, dtype: torch.dtype) -> None:
    for shape in [(0, 0, 2, 4), (0, 8, 2, 4), (1, 8, 2, 0), (1, 1, 1, 1)]:
        assert not is_worthwhile(op, shape, dtype)


@pytest.mark.parametrize(("tokens", "width", "pays"), [(128, 8, True), (127, 8, False), (128, 0, False), (0, 8, False)])
def test_the_loss_of_few_tokens_is_left_to_pytorch(tokens: int, width: int, pays: bool) -> None:
    arguments = (torch.empty(tokens, width), torch.empty(10, width), torch.zeros(tokens, dtype=torch.int64), -100)
    assert cpu_backend.WORTHWHILE["linear_cross_entropy"].holds(arguments) == pays


@pytest.mark.parametrize("op", SPLIT_OPS)
def test_autocast_counts_as_its_own_type(op: str) -> None:
    shape = (4, 512, 12, 128)
    assert is_worthwhile(op, shape)
    with torch.autocast("cpu", torch.bfloat16):
        assert is_worthwhile(op, shape) == is_worthwhile(op, shape, torch.bfloat16) == (op == "split_attention")
