from helpers.command_line import refuse, succeed
from smht import PRESETS, SmhtConfig, SmhtForCausalLM
from smht.training.preparation import DEFAULT_PRESET


def test_json() -> None:
    rows = succeed("presets", "--json").json
    assert [row["name"] for row in rows] == list(PRESETS)
    assert DEFAULT_PRESET in PRESETS
    for row in rows:
        assert set(row) == {"name", "description", "parameters", "fields"}
        assert row["parameters"] == SmhtForCausalLM(SmhtConfig(**row["fields"])).num_parameters()


def test_table() -> None:
    result = succeed("presets")
    assert result.err == ""
    for name, preset in PRESETS.items():
        row = next(line for line in result.out.splitlines() if f" {name} " in line)
        assert preset.description in row
    assert " 1,904 " in result.out


def test_it_takes_nothing() -> None:
    refuse("presets", "smht-mini", says="unexpected extra argument")
