import math
from collections.abc import Iterator

import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

from helpers.errors import refused
from smht.comparison.budget import Limit
from smht.comparison.fits import cost_of, hidden_unit, width_unit
from smht.comparison.sizes import Solved, change, solve
from smht.comparison.variants import LADDER, POSITIONS, parse_variant
from smht.errors import UsageError
from smht.models import SmhtConfig, SmhtForCausalLM, preset_config

HEADS = (1, 2, 4, 8)


def base(**changes: object) -> SmhtConfig:
    return preset_config("smht-small", vocab_size=300, max_position_embeddings=32, **changes)


def all_sizes(config: SmhtConfig, budget: Limit) -> Iterator[int]:
    """Costs of the models whose `F / D` is from 1 to 16 that are nearest to the budget from below and from above."""
    unit = width_unit(config.num_attention_heads, config.position_embedding)
    blocks = hidden_unit(config.split, config.num_attention_heads)
    least = 2 * config.num_attention_heads if config.mixing == "shuffle" or config.norm_scope == "head" else unit
    scratch = SmhtConfig(**config.to_diff_dict())

    def cost(width: int, hidden: int) -> int:
        scratch.hidden_size, scratch.intermediate_size = width, hidden
        return cost_of(scratch, budget.kind)

    for width in range(least, 100_000, unit):
        narrow, wide = math.ceil(width / blocks) * blocks, 16 * width // blocks * blocks
        if cost(width, narrow) > budget.amount:
            yield cost(width, narrow)
            return
        each = cost(width, narrow + blocks) - cost(width, narrow)
        below = min(wide, narrow + int((budget.amount - cost(width, narrow)) // each) * blocks)
        yield cost(width, below)
        yield cost(width, min(wide, below + blocks))


@given(
    rung=st.sampled_from(LADDER),
    positions=st.sampled_from(sorted(POSITIONS)),
    heads=st.sampled_from(HEADS),
    kind=st.sampled_from(["parameters", "multiplications"]),
    size=st.floats(4, 6.5),
    layers=st.integers(1, 6),
)
@settings(max_examples=30)
def test_within_one_percent_wherever_any_sizes_are(
    rung: str, positions: str, heads: int, kind: str, size: float, layers: int
) -> None:
    assume(heads > 1 or "shuffle" not in rung)
    variant = parse_variant(f"{rung}+{positions}+H={heads}")
    budget = Limit(kind, round(10**size))
    architecture = base(num_hidden_layers=layers)
    errors = [abs(cost / budget.amount - 1) for cost in all_sizes(change(architecture, variant), budget)]
    try:
        solved = solve(variant, architecture, budget)
    except UsageError as refusal:
        assert min(errors) > 0.1, refusal
        return
    check(solved, budget)
    if abs(solved.off) > 0.01:
        assert min(errors) == pytest.approx(abs(solved.off))


def check(solved: Solved, budget: Limit) -> None:
    """What the solver says of its sizes is so."""
    assert cost_of(solved.config, budget.kind) == solved.cost
    assert solved.off == pytest.approx(solved.cost / budget.amount - 1)
    assert abs(solved.off) <= 0.1


@pytest.mark.parametrize("rung", LADDER)
def test_real_models_have_that_many_parameters_and_multiply_adds(rung: str) -> None:
    parameters = Limit("parameters", 100_000)
    solved = solve(parse_variant(rung), base(), parameters)
    assert abs(solved.off) < 0.01
    assert SmhtForCausalLM(solved.config).num_parameters() == solved.cost
    multiplications = Limit("multiplications", 200_000)
    solved = solve(parse_variant(rung), base(), multiplications)
    assert abs(solved.off) < 0.01
    assert count_multiply_adds(solved.config) == solved.cost * solved.config.max_position_embeddings


def count_multiply_adds(config: SmhtConfig) -> float:
    """Of a window of the context, by PyTorch's counter."""
    config._attn_implementation = "eager"
    model = SmhtForCausalLM(config).eval()
    ids = torch.zeros(1, config.max_position_embeddings, dtype=torch.long)
    model(input_ids=ids)  # the counter knows only ops that were there when it was made, and kernels load on first use
    with torch.no_grad(), sdpa_kernel(SDPBackend.MATH), FlopCounterMode(display=False) as counter:
        model(input_ids=ids)
    return counter.get_total_flops() / 2


def test_block_parameters_are_equal_where_width_grows_with_the_root_of_heads() -> None:
    budget = Limit("parameters", 30_000_000)
    widths = {
        heads: solve(parse_variant(f"split+H={heads}"), base(), budget).config.hidden_size for heads in (1, 4, 16)
    }
    assert widths[4] / widths[1] == pytest.approx(2, rel=0.1)
    assert widths[16] / widths[1] == pytest.approx(4, rel=0.1)


def test_the_feed_forward_stays_about_four_times_as_wide() -> None:
    for rung in LADDER:
        config = solve(parse_variant(rung), base(), Limit("parameters", 1_000_000)).config
        assert config.intermediate_size is not None
        assert 3 <= config.intermediate_size / config.hidden_size <= 5
        assert config.head_dim % 4 == 0
        assert config.num_hidden_layers == 4


def test_the_base_itself_meets_its_own_budget() -> None:
    odd = base(hidden_size=72, intermediate_size=300)
    budget = Limit("parameters", cost_of(change(odd, parse_variant("split+shuffle")), "parameters"))
    solved = solve(parse_variant("split+shuffle"), odd, budget)
    assert (solved.config.hidden_size, solved.config.intermediate_size, solved.off) == (72, 300, 0.0)


def test_a_width_is_the_same_for_all_and_the_feed_forward_follows_the_base() -> None:
    for rung in LADDER:
        solved = solve(parse_variant(rung), base(intermediate_size=384), Limit("width", 64))
        assert (solved.config.hidden_size, solved.config.intermediate_size) == (64, 128)
        assert (solved.cost, solved.off) == (64, 0.0)


@pytest.mark.parametrize("rung", ["split+shuffle", "dense", "split+H=8"])
@pytest.mark.parametrize("amount", [300_000, 3_000_000])
def test_depth_keeps_the_base_in_proportion(rung: str, amount: int) -> None:
    solved = solve(parse_variant(rung), base(), Limit("parameters", amount), solve_depth=True)
    assert abs(solved.off) < 0.01
    assert 2 <= solved.config.num_hidden_layers <= 16
    assert solved.config.hidden_size / solved.config.num_hidden_layers == pytest.approx(192 / 4, rel=0.25)


def test_more_heads_than_the_base_has_are_no_obstacle() -> None:
    config = change(base(hidden_size=24), parse_variant("split+H=16"))
    assert (config.hidden_size, config.intermediate_size) == (32, 128)


def test_a_budget_that_no_width_meets_names_the_nearest() -> None:
    with refused("no width gives split 1,000 parameters", "nearest is", "(width 8, feed-forward", "4 blocks)"):
        solve(parse_variant("split"), base(), Limit("parameters", 1_000))
    with refused("no width gives dense 1,000 multiply-adds a token"):
        solve(parse_variant("dense"), base(), Limit("multiplications", 1_000))


def test_a_tenth_is_the_most_that_a_budget_may_be_missed_by() -> None:
    least = solve(parse_variant("split"), base(), Limit("width", 8)).config
    least.intermediate_size = 8
    cost = cost_of(least, "parameters")
    assert solve(parse_variant("split"), base(), Limit("parameters", round(cost / 1.09))).cost == cost
    with refused(f"the nearest is {cost:,}"):
        solve(parse_variant("split"), base(), Limit("parameters", round(cost / 1.11)))


def test_the_largest_budget_is_found_in_no_time() -> None:
    solved = solve(parse_variant("split+H=1"), base(), Limit("parameters", 10**24), solve_depth=True)
    assert abs(solved.off) < 1e-6


@pytest.mark.parametrize(
    ("name", "width", "says"),
    [
        ("split", 250, ("width=250", "4 heads and rotary positions", "multiple of 8", "248 and 256")),
        ("split+learned", 250, ("with 4 heads it is a multiple of 4", "248 and 252")),
        ("dense+H=8", 10, ("a multiple of 16", "nearest is 16")),
        ("split+shuffle+learned", 4, ("variant split+shuffle+learned", "each head is one channel wide")),
    ],
)
def test_widths_that_a_variant_cannot_have(name: str, width: int, says: tuple[str, ...]) -> None:
    with refused(*says):
        solve(parse_variant(name), base(), Limit("width", width))


def test_variants_that_make_no_model() -> None:
    with refused("variant split+shuffle+H=1", "there is one head"):
        change(base(), parse_variant("split+shuffle+H=1"))
