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
    lines = [" ".join(line.split()) for line in result.out.splitlines()]
    assert lines[0] == "preset parameters what for"
    assert [line.split()[0] for line in lines[2:]] == list(PRESETS)
    assert f"smht-mini 1,904 {PRESETS['smht-mini'].description}" in lines


def test_it_takes_nothing() -> None:
    refuse("presets", "smht-mini", says="unexpected extra argument")
