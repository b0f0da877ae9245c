from pathlib import Path

import pytest
import torch
from rich.text import Text

from helpers.command_line import refuse, smht, succeed
from smht import PRESETS, SmhtForCausalLM, SmhtForSeq2SeqLM, SmhtModel, preset_config

MODELS = {"decoder": SmhtForCausalLM, "encoder": SmhtModel, "encoder_decoder": SmhtForSeq2SeqLM}


def test_the_mini_model_of_the_seed() -> None:
    values = succeed("summary", "--preset", "smht-mini", "--json").json
    assert values["model"] == "smht-mini"
    assert values["total"]["model"]["parameters"] == 1904
    out = succeed("summary", "--preset", "smht-mini").out
    assert out.startswith("smht-mini")
    total = next(line for line in out.splitlines() if line.startswith("Total"))
    assert "1,904" in total.split()


@pytest.mark.parametrize("name", PRESETS)
def test_parts_sum_to_the_total_and_to_what_pytorch_counts(name: str) -> None:
    values = succeed("summary", "--preset", name, "--json").json
    for side in ("model", "dense"):
        for cost, total in values["total"][side].items():
            assert sum(part[side][cost] for part in values["parts"]) == total
    config = preset_config(name)
    with torch.device("meta"):
        model = MODELS[config.stack](config)
    assert values["total"]["model"]["parameters"] == sum(weight.numel() for weight in model.parameters())


def test_a_run(run: Path) -> None:
    values = succeed("summary", run, "--json").json
    assert values["model"] == str(run)
    assert values["total"]["model"]["parameters"] == 5776
    assert values["config"]["hidden_size"] == 16
    assert "5,776" in succeed("summary", run).out


def test_brackets_in_a_name_are_no_markup(copied_run: Path) -> None:
    copied_run.rename("a[bold]")
    assert succeed("summary", "a[bold]").out.startswith("a[bold]")


def test_flags_change_the_default_preset() -> None:
    values = succeed("summary", "--hidden-size", "64", "--json").json
    assert values["model"] == "smht-small, changed"
    expected = SmhtForCausalLM(preset_config("smht-small", hidden_size=64)).num_parameters()
    assert values["total"]["model"]["parameters"] == expected


def test_a_dense_model_has_no_second_column() -> None:
    values = succeed("summary", "--split", "none", "--json").json
    assert values["is_split"] is False
    assert values["config"]["mixing"] == "none"
    assert "split /" not in succeed("summary", "--split", "none").out


def test_a_head_width_that_wastes_a_matrix_unit_is_noted() -> None:
    arguments = ("--hidden-size", "96", "--num-attention-heads", "4")
    assert "the head width, 96 / 4 = 24, is no multiple of 16" in " ".join(succeed("summary", *arguments).out.split())
    assert "no multiple" not in succeed("summary").out


@pytest.mark.parametrize("arguments", [(), ("--preset", "smht-mini"), ("--split", "none")])
def test_it_fits_a_terminal(arguments: tuple[str, ...], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setenv("FORCE_COLOR", "1")  # makes rich take the output for a terminal
    out = succeed("summary", *arguments).out
    assert max(Text.from_ansi(line).cell_len for line in out.splitlines()) <= 80


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("--preset", "smht-min"), ("'smht-min'", "did you mean smht-mini")),
        (("--preset", "gpt"), ("choose from", *PRESETS)),
        (("nowhere",), "there is no run folder nowhere"),
        (("text.txt",), "there is no run folder text.txt"),
        ((".",), "config.json is missing"),
        (("--hidden-size", "0"), "hidden_size = 0"),
        (("--vocab-size", "-1"), "vocab_size = -1"),
        (("--context", "0"), "max_position_embeddings = 0"),
        (("--hidden-size", "250"), ("hidden_size = 250", "num_attention_heads = 4", "248 and 252")),
        (("--split", "qvk"), ("'qvk'", "did you mean qkv?")),
        (("--split", "none", "--mixing", "shuffle"), "mixing = 'shuffle' would do nothing"),
        (("--mixing", "shufle"), ("'shufle'", "'shuffle'")),
        (("--hidden-act", "gelo"), ("'gelo'", "'gelu'")),
        (("one", "two"), "unexpected extra argument"),
    ],
)
def test_refusals(arguments: tuple[str, ...], says: tuple[str, ...]) -> None:
    refuse("summary", *arguments, says=says)


@pytest.mark.parametrize(
    ("arguments", "flag"),
    [
        (("--preset", "smht-mini"), "--preset"),
        (("--context", "8"), "--context"),
        (("--hidden-size", "8"), "--hidden-size"),
    ],
)
def test_a_run_has_its_own_architecture(run: Path, arguments: tuple[str, ...], flag: str) -> None:
    result = smht("summary", run, *arguments)
    assert result.code == 2
    assert f"leave out {flag}" in result.err
