from pathlib import Path

import pytest

from helpers.command_line import refuse, succeed

MINI = ("trace", "--preset", "smht-mini", "--ids", "17,52,3,88")


def test_the_article_step_by_step() -> None:
    lines = succeed(*MINI).out.splitlines()
    heads = [line for line in lines if not line.startswith(" ")]
    assert heads[0] == "0    token ids: integers in [0, V) → (1, 4)"
    assert "3d   attention weights (block 0): softmax(q_h · k_hᵀ / √K + mask) → (1, 4, 4, 4)" in heads
    assert heads[-1].endswith("→ (1, 4, 100)")
    assert sum(line.startswith("     400 numbers: mean ") for line in lines) == 2


def test_one_step_one_block_one_head() -> None:
    lines = succeed(*MINI, "--step", "3d", "--layer", "0", "--head", "2").out.splitlines()
    assert len(lines) == 5
    for number, line in enumerate(lines[1:]):
        weights = [float(value) for value in line.removeprefix(f"     token {number}").split()]
        assert sum(weights) == pytest.approx(1, abs=2e-4)
        assert weights[number + 1 :] == [0] * (3 - number)


def test_json_has_every_number() -> None:
    steps = succeed(*MINI, "--json").json
    assert [step["step"] for step in steps[:3]] == ["0", "1", "2"]
    logits = next(step for step in steps if step["step"] == "5")
    assert logits["shape"] == [1, 4, 100]
    assert len(logits["values"][0][3]) == 100
    assert succeed(*MINI, "--json", "--seed", "1").json[1]["values"] != steps[1]["values"]


def test_a_run_reads_text(run: Path) -> None:
    steps = succeed("trace", run, "the split head", "--json").json
    assert steps[0]["values"] == [[256, *b"the split head"]]
    assert "in the block's own order" not in succeed("trace", run, "the split").out  # one block: the residual order


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("trace",), "give a run folder or --preset"),
        (("trace", "--preset", "smht-mini"), "give a text or --ids"),
        (("trace", "--preset", "smht-min", "--ids", "1"), "did you mean smht-mini"),
        (("trace", "--preset", "smht-mini", "--ids", "1,x"), "'1,x' is no list of token ids"),
        (("trace", "--preset", "smht-mini", "--ids", "100"), "token id 100 is outside the vocabulary of 100"),
        (("trace", "--preset", "smht-mini", "--ids", ",".join(["1"] * 17)), "the model's 16 positions"),
        (
            ("trace", "--preset", "smht-mini", "--ids", "1,99999999999999999999"),
            "token id 99999999999999999999 is outside",
        ),
        (("trace", "--preset", "smht-mini", "--ids", "-1"), "token id -1 is outside"),
        ((*MINI, "--seed", "-99999999999999999999"), "seed = -99999999999999999999 must be at least 0"),
        (("trace", "--preset", "smht-mini", "a text"), "give --ids, and neither run nor text"),
        ((*MINI, "--step", "3z"), "there is no step '3z'"),
        ((*MINI, "--layer", "1"), "there is no block 1: they are 0 to 0"),
        ((*MINI, "--head", "4"), "there is no head 4: they are 0 to 3"),
        ((*MINI, "--target", "x"), "--target goes with a text"),
        (("trace", "nowhere", "text"), "there is no run folder nowhere"),
    ],
)
def test_what_cannot_be_traced(arguments: tuple[str, ...], says: str) -> None:
    refuse(*arguments, says=says)


def test_texts_that_cannot_be_traced(run: Path) -> None:
    refuse("trace", run, "text", "--target", "x", says="--target is for runs of an encoder-decoder")
    refuse("trace", run, "", says="the text is empty")
    refuse("trace", run, "x" * 16, says="the model's 16 positions")


def test_one_head_in_json_says_whose_it_is() -> None:
    (step,) = succeed(
        "trace", "--preset", "smht-mini", "--ids", "17,52,3", "--step", "3d", "--head", "1", "--json"
    ).json
    assert (step["head"], step["shape"]) == (1, [1, 3, 3])
    (step,) = succeed("trace", "--preset", "smht-mini", "--ids", "17,52,3", "--step", "1", "--head", "1", "--json").json
    assert (step["head"], step["shape"]) == (None, [1, 3, 8])


def test_a_runs_weights_need_no_seed(run: Path) -> None:
    refuse("trace", run, "ab", "--seed", "1", says="--seed is for a preset's weights")
