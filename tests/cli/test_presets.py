import torch

from helpers.command_line import refuse, succeed
from smht import PRESETS, SmhtConfig, SmhtForCausalLM, SmhtForSeq2SeqLM, SmhtModel
from smht.tasks import TASKS

MODELS = {"decoder": SmhtForCausalLM, "encoder": SmhtModel, "encoder_decoder": SmhtForSeq2SeqLM}


def test_json() -> None:
    rows = succeed("presets", "--json").json
    assert [row["name"] for row in rows] == list(PRESETS)
    assert {task.preset for task in TASKS.values()} <= PRESETS.keys()
    for row in rows:
        assert set(row) == {"name", "description", "parameters", "fields"}
        with torch.device("meta"):
            config = SmhtConfig(**row["fields"])
            model = MODELS[config.stack](config)
        assert row["parameters"] == model.num_parameters()


def test_table() -> None:
    result = succeed("presets")
    assert result.err == ""
    lines = [" ".join(line.split()) for line in result.out.splitlines()]
    assert lines[0] == "preset parameters what for"
    assert [line.split()[0] for line in lines[2:]] == list(PRESETS)
    assert f"smht-mini 1,904 {PRESETS['smht-mini'].description}" in lines


def test_it_takes_nothing() -> None:
    refuse("presets", "smht-mini", says="unexpected extra argument")
