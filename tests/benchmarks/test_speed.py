"""The benchmarks of speed run through on tiny sizes, and count what they say they count."""

import math
import sys
from collections.abc import Callable, Iterator
from types import ModuleType
from typing import Any

import pytest
import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

from helpers.benchmarks import benchmark
from smht import ops
from smht.inspection.accounting import account
from smht.layers import Block
from smht.models import dense_twin
from smht.models.presets import preset_config

DTYPES = (torch.float32, torch.bfloat16)
KINDS = ("forward", "forward+backward")


@pytest.fixture
def block() -> Iterator[ModuleType]:
    with benchmark("block") as module:
        yield module


@pytest.fixture
def sweep() -> Iterator[ModuleType]:
    with benchmark("sweep") as module:
        yield module


@pytest.fixture
def training_step() -> Iterator[ModuleType]:
    with benchmark("training_step") as module:
        yield module


@pytest.fixture
def dense_projections() -> Iterator[ModuleType]:
    with benchmark("dense_projections") as module:
        yield module


def assert_measured(figures: list[Any]) -> None:
    names = [figure.name for figure in figures]
    assert names and len(set(names)) == len(names)
    assert all(math.isfinite(figure.value) and figure.value > 0 for figure in figures)


def multiplications_in(action: Callable[[], object]) -> float:
    """As torch counts them, all pairs of tokens; backward of attention from kept weights, which is four products."""
    with sdpa_kernel(SDPBackend.MATH), FlopCounterMode(display=False) as counter:
        action()
    return counter.get_total_flops() / 2


def know_the_machine(module: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    """Spare the measurement of its limits."""
    for name in ("peak", "copy_bandwidth"):
        if hasattr(module, name):
            monkeypatch.setattr(module, name, lambda *_: 1e10)


def test_the_machine_has_limits() -> None:
    with benchmark("measure") as module:
        assert module.copy_bandwidth(1) > 1e7
        assert all(module.peak(dtype, 1) > 1e7 for dtype in module.timed_dtypes())


@pytest.mark.parametrize("dtype", DTYPES)
def test_ops(monkeypatch: pytest.MonkeyPatch, dtype: torch.dtype) -> None:
    with benchmark("ops") as module:
        know_the_machine(module, monkeypatch)
        assert_measured(module.measure((1, 8, 2, 16), dtype, rounds=1))


@pytest.mark.parametrize("dtype", DTYPES)
def test_block(block: ModuleType, monkeypatch: pytest.MonkeyPatch, dtype: torch.dtype) -> None:
    know_the_machine(block, monkeypatch)
    assert_measured(block.measure(block.Shape(1, 8, 2, 16), dtype, rounds=1))


def test_every_goal_of_the_block_is_of_a_shape_that_is_measured(block: ModuleType) -> None:
    measured = {(dtype, shape.hidden, kind) for dtype in DTYPES for shape in block.SHAPES for kind in KINDS}
    assert set(block.DENSE_GOALS) <= measured


def test_the_dense_block_is_ours_with_queries_keys_and_values_in_one(block: ModuleType) -> None:
    dense, ours = block.DenseBlock(12, 3), Block(12, 3, 48, split=())
    attention = ours.self_attn
    qkv = [attention.q_proj.weight, attention.k_proj.weight, attention.v_proj.weight]
    pairs = [
        (dense.qkv.weight, torch.cat([weight for weight in qkv if isinstance(weight, torch.Tensor)])),
        (dense.output.weight, attention.o_proj.weight),
        (dense.up.weight, ours.mlp.up_proj.weight),
        (dense.down.weight, ours.mlp.down_proj.weight),
    ]
    with torch.no_grad():
        for theirs, weight in pairs:
            theirs.copy_(weight)
    x = torch.randn(2, 5, 12)
    torch.testing.assert_close(dense(x), ours(x))


@pytest.mark.parametrize("kind", KINDS)
def test_multiplications_of_the_block_are_those_that_torch_counts(block: ModuleType, kind: str) -> None:
    shape, x = block.Shape(2, 6, 3, 12), torch.randn(2, 6, 12, requires_grad=True)
    for heads, module in ((1, block.DenseBlock(12, 3)), (3, Block(12, 3, 48))):
        ops.set_backend("reference")
        counted = multiplications_in(lambda m=module: m(x) if kind == "forward" else m(x).sum().backward())
        all_pairs, pairs = 2 * 6 * 6 * 12, shape.pairs * shape.hidden / shape.heads
        assert pairs == 2 * (1 + 2 + 3 + 4 + 5 + 6) * 12
        theirs, ours = (2, 2) if kind == "forward" else (6, 7)
        assert counted - theirs * all_pairs == shape.multiplications(kind, heads) - ours * pairs


def test_sweep_runs_every_op(sweep: ModuleType) -> None:
    found = sweep.measure([sweep.Shape(1, 2, 2, 4)], "cpu" if runs_kernels() else "auto", rounds=1)
    assert len(found) == len(sweep.OPS) * len(DTYPES) * len(KINDS)
    assert min(found.values()) > 0


def runs_kernels() -> bool:
    return ops.BACKENDS["cpu"].why_unavailable() is None


def test_sweep_covers_all_sizes(sweep: ModuleType) -> None:
    shapes = sweep.shapes()
    assert len(set(shapes)) == len(shapes) == 60
    for axis, low, high in ((0, 1, 32), (1, 1, 2048), (2, 1, 64), (3, 4, 128)):
        sizes = sorted(shape[axis] for shape in shapes)
        assert low == sizes[0] and sizes[-1] <= high
        middle = math.sqrt(low * high)
        assert 15 < sum(size < middle for size in sizes) < 45, axis
    assert {shape.tokens for shape in shapes} >= {1, 2048} and {shape.width for shape in shapes} >= {4, 128}


@pytest.mark.parametrize(
    ("attempts", "kept"),
    [
        ([[0.5, 0.96, 1.0]], 0.96),
        ([[0.9, 0.9, 0.9], [1.0, 1.1, 1.2, 1.3]], 1.0),
        ([[1.3, 0.5, 0.5], *([[0.7, 0.6]] * 5)], 0.6),
    ],
)
def test_sweep_tries_what_seems_slower_again(
    sweep: ModuleType, monkeypatch: pytest.MonkeyPatch, attempts: list[list[float]], kept: float
) -> None:
    first, *others = (sweep.Case(op, KINDS[0], DTYPES[0], sweep.Shape(1, 1, 1, 4)) for op in sweep.OPS)
    remaining, rounds = list(attempts), []
    monkeypatch.setattr(sweep, "cases", lambda of: [first])
    monkeypatch.setattr(sweep, "speedups", lambda case, backend, r: rounds.append(r) or remaining.pop(0))
    found = sweep.measure([], "auto", 7)
    assert found == {first: kept} and not remaining and rounds == [7, *[28] * 5][: len(attempts)]
    figures = {figure.name: figure for figure in sweep.figures_of({**found, **dict.fromkeys(others, 1.0)}, every=False)}
    assert (str(first) in figures) == (kept < 1 / 1.05)
    assert figures[f"cases slower than the reference, of {len(sweep.OPS)}"].holds == (kept >= 1 / 1.05)


def test_dense_projections(dense_projections: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    know_the_machine(dense_projections, monkeypatch)
    assert_measured(dense_projections.measure(rounds=1, batch=1, tokens=4, hidden=(24, 576)))


def test_products_that_differ_are_not_timed(dense_projections: ModuleType) -> None:
    x = torch.randn(1, 4, 24)
    variants = dense_projections.projections(x, 12)[dense_projections.QKV]
    dense_projections.check_equal(variants)
    call, leaves = variants["one a head"]
    with torch.no_grad():
        leaves[5].mul_(2)
    with pytest.raises(AssertionError, match="do not give the same"):
        dense_projections.check_equal(variants)
    assert len(call()) == 36


def tiny_config() -> Any:
    sizes = {"hidden_size": 24, "num_hidden_layers": 2, "num_attention_heads": 3, "max_position_embeddings": 8}
    return preset_config("smht-small", vocab_size=32, **sizes)


def test_training_step(training_step: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    know_the_machine(training_step, monkeypatch)
    assert_measured(list(training_step.speed_figures("tiny", tiny_config(), training_step.CONTESTANTS, rounds=1)))


def test_every_contestant_learns_from_the_same_tokens(training_step: ModuleType) -> None:
    contestants = [training_step.make_contestant(name, tiny_config()) for name in training_step.CONTESTANTS]
    for contestant in contestants:
        losses = [contestant.step() for _ in range(3)]
        assert losses[2] < losses[0]
        assert torch.equal(contestant.batch["input_ids"], contestants[0].batch["input_ids"])
        assert contestant.batch["input_ids"].shape == (256, 8)


def test_gpt2_has_the_sizes_of_the_dense_twin(training_step: ModuleType) -> None:
    config = training_step.demo_config()
    gpt2 = training_step.make_contestant("GPT-2", config).model
    blocks = config.num_hidden_layers * 13 * config.hidden_size  # biases of projections and norms
    twin = account(dense_twin(config)).total.parameters - config.num_hidden_layers * 4 * config.hidden_size
    positions = config.max_position_embeddings * config.hidden_size
    assert gpt2.num_parameters() == twin + blocks + positions


@pytest.mark.parametrize("name", ["the reference", "the dense twin"])
def test_multiplications_of_a_step_are_those_that_torch_counts(training_step: ModuleType, name: str) -> None:
    config = tiny_config()
    contestant = training_step.make_contestant(name, config)
    counted = multiplications_in(contestant.step) / contestant.batch["input_ids"].numel()
    config = dense_twin(config) if name == "the dense twin" else config
    costs = account(config)
    all_pairs = costs.part("attention scores and mixing").costs.multiply_adds
    assert costs.causal_attention is not None
    assert counted - 3 * all_pairs == training_step.multiplications(config) - 3.5 * costs.causal_attention


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_memory_of_a_step_is_that_of_its_tensors(training_step: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    class Holder:
        def step(self) -> None:
            torch.ones(50_000_000)

    def make_contestant(name: str, config: object) -> Holder:
        torch.ones(100_000_000)  # a peak before the first step
        return Holder()

    monkeypatch.setattr(training_step, "make_contestant", make_contestant)
    assert 190e6 < training_step.added_memory("kernels", None) < 260e6
