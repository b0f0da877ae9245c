"""What the row `gpu` says about machines and calls. Needs no GPU and no Triton: their parts are played."""

import importlib.util
import warnings
from collections.abc import Callable, Iterator
from dataclasses import replace

import pytest
import torch
from torch import Tensor

from helpers.errors import refused
from smht import ops
from smht.ops import backend, gpu_backend
from smht.ops.call import Call

pytestmark = pytest.mark.skipif(gpu_backend.INTERPRETED, reason="about GPUs")


@pytest.fixture(scope="module", autouse=True)
def chosen_backend() -> Iterator[None]:
    """These tests choose themselves."""
    before = backend._chosen
    yield
    backend._chosen = before


@pytest.fixture(autouse=True)
def nothing_found_yet() -> Iterator[None]:
    def forget() -> None:
        gpu_backend.why_unavailable.cache_clear()
        gpu_backend._is_recent.cache_clear()

    forget()
    yield
    forget()


@pytest.fixture
def with_gpus(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """The machine has GPUs of these compute capabilities, all called T4."""

    def play(*capabilities: tuple[int, int]) -> None:
        monkeypatch.setattr(torch.version, "cuda", "12.6")
        monkeypatch.setattr(torch.cuda, "is_available", lambda: bool(capabilities))
        monkeypatch.setattr(torch.cuda, "device_count", lambda: len(capabilities))
        monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: capabilities[device.index])
        monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: "T4")

    return play


def play_triton(monkeypatch: pytest.MonkeyPatch, load: Callable[[str], object] | None) -> None:
    """Triton is installed, and loading the kernels calls `load`; or it is not."""
    find = importlib.util.find_spec

    def find_spec(name: str, package: str | None = None) -> object:
        return (object() if load else None) if name == "triton" else find(name, package)

    monkeypatch.setattr(importlib.util, "find_spec", find_spec)
    if load:
        monkeypatch.setattr(gpu_backend.importlib, "import_module", load)


def broken(_: str) -> None:
    raise RuntimeError("ptxas is missing\nand more")


def test_a_machine_without_a_gpu(with_gpus: Callable[..., None]) -> None:
    with_gpus()
    assert gpu_backend.why_unavailable() == "no NVIDIA GPU"
    with refused("the backend 'gpu' cannot run here: no NVIDIA GPU"):
        ops.set_backend("gpu")


def test_an_amd_gpu_is_none_of_nvidias(with_gpus: Callable[..., None], monkeypatch: pytest.MonkeyPatch) -> None:
    with_gpus((9, 0))
    monkeypatch.setattr(torch.version, "cuda", None)
    assert gpu_backend.why_unavailable() == "no NVIDIA GPU"


def test_a_driver_that_pytorch_warns_of(with_gpus: Callable[..., None], monkeypatch: pytest.MonkeyPatch) -> None:
    with_gpus()

    def is_available() -> bool:
        warnings.warn("The NVIDIA driver on your system is too old", stacklevel=1)
        return False

    monkeypatch.setattr(torch.cuda, "is_available", is_available)
    assert gpu_backend.why_unavailable() == "no NVIDIA GPU"


@pytest.mark.parametrize(
    ("capabilities", "load", "reason"),
    [
        ([(7, 5)], None, "T4 is older than compute capability 8.0"),
        ([(8, 0)], None, "Triton is not installed"),
        ([(7, 5), (9, 0)], broken, "Triton cannot be loaded: ptxas is missing"),
        ([(7, 5), (9, 0)], str, None),
    ],
)
def test_machines_with_gpus(
    capabilities: list[tuple[int, int]],
    load: Callable[[str], object] | None,
    reason: str | None,
    with_gpus: Callable[..., None],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with_gpus(*capabilities)
    play_triton(monkeypatch, load)
    assert gpu_backend.why_unavailable() == reason


X, UP, DOWN, SQUARE = torch.zeros(2, 6), torch.zeros(2, 3, 4), torch.zeros(2, 4, 3), torch.zeros(2, 3, 3)


def linear(x: Tensor = X, weight: Tensor = UP, bias: Tensor | None = None) -> Call:
    return Call("split_linear", (x, weight, bias))


def feed_forward(x: Tensor = X, up: Tensor = UP, down: Tensor = DOWN) -> Call:
    return Call("split_feed_forward", (x, up, down, "gelu", None, None))


def attention(
    x: Tensor = X[None], weight: Tensor = SQUARE, mask: Tensor | None = None, dropout: float = 0.0, *more: Tensor | None
) -> Call:
    return Call("split_attention", (x, *[weight] * 4, mask is None, mask, dropout, 0.5, *more))


def wide(channels: int, dtype: torch.dtype) -> list[Tensor]:
    return [torch.zeros(1, 1, channels, dtype=dtype), torch.zeros(1, channels, channels, dtype=dtype)]


@pytest.fixture
def played_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """The CPU is the GPU."""
    monkeypatch.setattr(gpu_backend, "DEVICE", "cpu")
    monkeypatch.setattr(gpu_backend, "_is_recent", lambda device: True)


def obstacles(call: Call) -> list[str]:
    """What the call needs and does not fulfil."""
    return [rule.needs for rule in gpu_backend.CONDITIONS[call.op] if not rule.holds(call)]


@pytest.mark.usefixtures("played_gpu")
@pytest.mark.parametrize(
    "call",
    [
        linear(),
        linear(bias=torch.zeros(8)),
        linear(X.half(), UP.half()),
        linear(X.bfloat16(), UP.bfloat16()),
        linear(*wide(1000, torch.float32)),
        feed_forward(),
        feed_forward(*wide(128, torch.float32), wide(128, torch.float32)[1]),
        feed_forward(*wide(256, torch.float16), wide(256, torch.float16)[1]),
        attention(),
        attention(X[None], SQUARE, None, 0.1, None, None),
        attention(mask=torch.zeros(1, 1, 1, 2, dtype=torch.bool)),
        attention(mask=torch.zeros(1, 1, 1, 2)),
        attention(X[None].half(), SQUARE.half(), None, 0.0, X, X),
        attention(*wide(64, torch.float32)),
        attention(*wide(128, torch.bfloat16)),
        attention(torch.zeros(1, 1 << 16, 2), torch.zeros(1, 2, 2), dropout=0.1),
    ],
)
def test_calls_that_the_kernels_take(call: Call) -> None:
    assert obstacles(call) == []


class Marked(Tensor):
    """No plain tensor."""


@pytest.mark.usefixtures("played_gpu")
@pytest.mark.parametrize(
    ("call", "needs"),
    [
        (linear(X.to("meta"), UP.to("meta")), "tensors on one NVIDIA GPU of compute capability 8.0 or newer"),
        (linear(X, UP.to("meta")), "tensors on one NVIDIA GPU of compute capability 8.0 or newer"),
        (attention(mask=X.to("meta")), "tensors on one NVIDIA GPU of compute capability 8.0 or newer"),
        (linear(X.as_subclass(Marked)), "plain tensors"),
        (linear(X.double(), UP.double()), "float32, float16 or bfloat16, the same throughout"),
        (linear(X.half()), "float32, float16 or bfloat16, the same throughout"),
        (linear(bias=torch.zeros(8).half()), "float32, float16 or bfloat16, the same throughout"),
        (
            feed_forward(*wide(129, torch.float32), wide(129, torch.float32)[1]),
            "heads of at most 256 channels, 128 in float32",
        ),
        (
            feed_forward(*wide(257, torch.float16), wide(257, torch.float16)[1]),
            "heads of at most 256 channels, 128 in float32",
        ),
        (attention(*wide(65, torch.float32)), "heads of at most 128 channels, 64 in float32"),
        (attention(*wide(129, torch.bfloat16)), "heads of at most 128 channels, 64 in float32"),
        (
            attention(mask=torch.zeros(1, requires_grad=True)),
            "a mask of booleans, float32, float16 or bfloat16 that takes no gradient",
        ),
        (
            attention(mask=torch.zeros(1, dtype=torch.float64)),
            "a mask of booleans, float32, float16 or bfloat16 that takes no gradient",
        ),
        (
            attention(torch.zeros(1, (1 << 16) + 1, 2), torch.zeros(1, 2, 2), dropout=0.1),
            "at most 65536 tokens if there is dropout",
        ),
        (
            attention(X[None], SQUARE, None, 0.0, X, X.double()),
            "a rotation in float32, float16 or bfloat16 that takes no gradient",
        ),
        (
            attention(X[None], SQUARE, None, 0.0, X.clone().requires_grad_(), X),
            "a rotation in float32, float16 or bfloat16 that takes no gradient",
        ),
    ],
)
def test_calls_that_the_kernels_do_not_take(call: Call, needs: str) -> None:
    assert obstacles(call) == [needs]


def test_an_older_gpu_beside_a_newer_one_takes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpu_backend, "DEVICE", "cpu")
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (7, 5))
    assert obstacles(linear()) == ["tensors on one NVIDIA GPU of compute capability 8.0 or newer"]


@pytest.mark.usefixtures("played_gpu")
def test_under_vmap_the_reference_computes() -> None:
    seen = []

    def look(x: Tensor) -> Tensor:
        seen.append(obstacles(linear(x)))
        return x

    torch.func.vmap(look)(X)
    assert "no export, no forward-mode and no vmapped derivative" in seen[0]


def test_each_call_goes_where_its_tensors_are(monkeypatch: pytest.MonkeyPatch) -> None:
    called: list[str] = []

    def row(name: str) -> backend.Backend:
        def call(x: Tensor, *_: object) -> Tensor:
            called.append(name)
            return x

        functions = dict.fromkeys(backend.OPS, call)
        return replace(backend.BACKENDS[name], functions=functions, why_unavailable=lambda: None)

    for name in ("reference", "cpu", "gpu"):
        monkeypatch.setitem(backend.BACKENDS, name, row(name))
    monkeypatch.setitem(backend.BACKENDS, "gpu", replace(backend.BACKENDS["gpu"], worthwhile={}))
    # Tensors without numbers play those of a GPU.
    monkeypatch.setattr(gpu_backend, "DEVICE", "meta")
    monkeypatch.setattr(gpu_backend, "_is_recent", lambda device: True)
    ops.set_backend("auto")
    for device in ("cpu", "meta", "cpu"):
        ops.split_linear(torch.zeros(600, 128, device=device), torch.zeros(2, 64, 64, device=device))
    ops.split_linear(torch.zeros(600, 128).double(), torch.zeros(2, 64, 64).double())
    assert called == ["cpu", "gpu", "cpu", "reference"]
    assert list(ops.explain()[0].backends) == ["cpu", "gpu", "reference"]
