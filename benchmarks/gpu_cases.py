"""What `gpu.py` checks and times: each op by our kernels, by the reference, and as a dense layer."""

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace

import torch
import torch.nn.functional as F
from torch import Tensor

from smht import ops
from smht.ops.gpu import tiles

DTYPES: dict[str, tuple[torch.dtype, str]] = {
    "bf16": (torch.bfloat16, "ieee"),
    "fp32": (torch.float32, "ieee"),
    "fp32x3": (torch.float32, "tf32x3"),
    "fp16": (torch.float16, "ieee"),
}
"""Dtype and how exact float32 products are multiplied, by name; the most telling ones first."""


@dataclass(frozen=True)
class Shape:
    """A block on a batch: B sequences of T tokens, width D, H heads, feed-forward width F."""

    batch: int
    tokens: int
    width: int
    heads: int
    inner: int

    @property
    def name(self) -> str:
        """For tables."""
        return f"B={self.batch} T={self.tokens} D={self.width} H={self.heads} K={self.width // self.heads}"


ISSUE_SHAPES = [Shape(4, 512, 768, 12, 3072), Shape(8, 256, 256, 8, 1024)]
MORE_SHAPES = [Shape(8, 2048, 768, 12, 3072), Shape(4, 1024, 1152, 16, 4608), Shape(8, 1024, 2048, 16, 8192)]
SMOKE_SHAPES = [Shape(1, 18, 6, 2, 12)]
OPS = ("linear", "feed_forward", "attention", "block")


@dataclass(frozen=True)
class Contestant:
    """One way to compute an op: a function of tensors, the tensors, and the backend that it runs on."""

    function: Callable[..., Tensor]
    tensors: list[Tensor]
    backend: str = "reference"

    def __call__(self, *tensors: Tensor) -> Tensor:
        """The function, on these tensors."""
        ops.set_backend(self.backend)
        return self.function(*tensors)

    def leaves(self, dtype: torch.dtype) -> list[Tensor]:
        """The tensors in this dtype, each asking for a gradient."""
        return [tensor.to(dtype).requires_grad_() for tensor in self.tensors]


def use_precision(dtype_name: str) -> torch.dtype:
    """Set how float32 products are multiplied; returns the dtype."""
    dtype, tiles.exact_float32 = DTYPES[dtype_name]
    return dtype


@contextmanager
def nothing_left_to_the_reference() -> Iterator[None]:
    """A call of the backend `gpu` that the kernels do not take is an error, and no result of the reference."""
    row = ops.BACKENDS["reference"]

    def guard(function: Callable[..., Tensor]) -> Callable[..., Tensor]:
        def call(*arguments: object) -> Tensor:
            if ops.get_backend() == "gpu":
                raise RuntimeError("the kernels did not take the call")
            return function(*arguments)

        return call

    ops.BACKENDS["reference"] = replace(row, functions={op: guard(call) for op, call in row.functions.items()})
    try:
        yield
    finally:
        ops.BACKENDS["reference"] = row


def split_contestant(op: str, backend: str, shape: Shape, device: str) -> Contestant:
    """The op by a backend: `gpu` or `reference`."""
    return Contestant(_SPLIT_FUNCTIONS[op], split_tensors(op, shape, device), backend)


def dense_contestant(op: str, shape: Shape, device: str) -> Contestant:
    """The dense layer that the op stands for, by cuBLAS and PyTorch's attention."""
    return Contestant(_dense_functions(shape.heads)[op], _dense_tensors(op, shape, device))


def split_tensors(op: str, shape: Shape, device: str) -> list[Tensor]:
    """`x` and the weights of the op, float32."""
    torch.manual_seed(0)
    heads, head_dim, head_width = shape.heads, shape.width // shape.heads, shape.inner // shape.heads
    x = torch.randn(shape.batch, shape.tokens, shape.width, device=device)
    square = [_weight(heads, head_dim, head_dim, device=device) for _ in range(4)]
    pair = [_weight(heads, head_dim, head_width, device=device), _weight(heads, head_width, head_dim, device=device)]
    return [x, *{"linear": square[:1], "feed_forward": pair, "attention": square, "block": [*square, *pair]}[op]]


def _dense_tensors(op: str, shape: Shape, device: str) -> list[Tensor]:
    torch.manual_seed(0)
    width, inner = shape.width, shape.inner
    x = torch.randn(shape.batch, shape.tokens, width, device=device)
    square = _weight(width, width, device=device)
    attention = [_weight(3 * width, width, device=device), square]
    pair = [_weight(inner, width, device=device), _weight(width, inner, device=device)]
    return [x, *{"linear": [square], "feed_forward": pair, "attention": attention, "block": [*attention, *pair]}[op]]


def _weight(*shape: int, device: str) -> Tensor:
    return torch.randn(*shape, device=device) / math.sqrt(shape[-2])


def _norm(x: Tensor) -> Tensor:
    return F.layer_norm(x, x.shape[-1:])


def _split_feed_forward(x: Tensor, up: Tensor, down: Tensor) -> Tensor:
    return ops.split_feed_forward(x, up, down)


def _split_attention(x: Tensor, *weights: Tensor) -> Tensor:
    return ops.split_attention(x, *weights, is_causal=True)


def _split_block(x: Tensor, *weights: Tensor) -> Tensor:
    x = x + _split_attention(_norm(x), *weights[:4])
    return x + _split_feed_forward(_norm(x), *weights[4:])


_SPLIT_FUNCTIONS: dict[str, Callable[..., Tensor]] = {
    "linear": ops.split_linear,
    "feed_forward": _split_feed_forward,
    "attention": _split_attention,
    "block": _split_block,
}


def _dense_functions(heads: int) -> dict[str, Callable[..., Tensor]]:
    def feed_forward(x: Tensor, up: Tensor, down: Tensor) -> Tensor:
        return F.linear(F.gelu(F.linear(x, up)), down)

    def attention(x: Tensor, projection: Tensor, output: Tensor) -> Tensor:
        batch, tokens, width = x.shape
        parts = F.linear(x, projection).view(batch, tokens, 3, heads, width // heads).permute(2, 0, 3, 1, 4)
        mixed = F.scaled_dot_product_attention(parts[0], parts[1], parts[2], is_causal=True)
        return F.linear(mixed.transpose(1, 2).reshape(x.shape), output)

    def block(x: Tensor, *weights: Tensor) -> Tensor:
        x = x + attention(_norm(x), *weights[:2])
        return x + feed_forward(_norm(x), *weights[2:])

    return {"linear": F.linear, "feed_forward": feed_forward, "attention": attention, "block": block}


@dataclass(frozen=True)
class Variant:
    """An op with options, by the kernels and by the reference, on the same tensors."""

    name: str
    ours: Contestant
    theirs: Contestant


def variants(device: str, head_dim: int, tokens: int, heads: int) -> list[Variant]:
    """Options and odd sizes that the timed shapes have not."""
    torch.manual_seed(0)
    width = heads * head_dim
    shape = Shape(2, tokens, width, heads, heads * (2 * head_dim + 3))
    up_bias, down_bias = torch.randn(shape.inner, device=device), torch.randn(width, device=device)
    visible = torch.rand(2, 1, tokens, tokens, device=device) < 0.7
    visible |= torch.eye(tokens, device=device, dtype=torch.bool)
    # Eighths: the same in every dtype.
    added = torch.randint(-16, 17, (1, heads, tokens, tokens), device=device) / 8

    def variant(name: str, op: str, more: list[Tensor], call: Callable[..., Tensor]) -> Variant:
        tensors = [*split_tensors(op, shape, device), *more]
        sides = [Contestant(call, tensors, backend) for backend in ("gpu", "reference")]
        return Variant(f"{name}, K={head_dim} T={tokens}", *sides)

    def activated(activation: str) -> Callable[..., Tensor]:
        return lambda x, up, down, *biases: ops.split_feed_forward(x, up, down, activation, *biases)

    def masked(mask: Tensor | None) -> Callable[..., Tensor]:
        def call(x: Tensor, *weights: Tensor) -> Tensor:
            cast = mask if mask is None or mask.dtype == torch.bool else mask.to(x.dtype)
            return ops.split_attention(x, *weights, mask=cast)

        return call

    angles = torch.arange(tokens, device=device)[None, :, None] * 0.7 ** torch.arange(head_dim // 2, device=device)
    turned = angles.cos(), angles.sin()

    def rotated(x: Tensor, *weights: Tensor) -> Tensor:
        return ops.split_attention(x, *weights, is_causal=True, rotation=turned)

    # One head width is enough for what works element by element.
    activations = ("gelu", "gelu_tanh", "relu", "relu_squared", "silu") if head_dim < 32 else ("gelu",)
    biases = [up_bias, down_bias]
    return [
        variant("linear with bias", "linear", [down_bias], ops.split_linear),
        *(variant(f"feed_forward {name}", "feed_forward", biases, activated(name)) for name in activations),
        variant("attention", "attention", [], masked(None)),
        variant("attention, boolean mask", "attention", [], masked(visible)),
        variant("attention, added mask", "attention", [], masked(added)),
        variant("attention, rotary", "attention", [], rotated),
    ]
