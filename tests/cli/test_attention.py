from pathlib import Path

import pytest

from helpers.command_line import refuse, succeed

pytest.importorskip("matplotlib")


def test_a_grid_and_a_map(run: Path) -> None:
    assert succeed("attention", run, "the split").out == "attention.png\n"
    assert (
        succeed("attention", run, "the split", "--layer", "0", "--head", "1", "--output", "map.svg").out == "map.svg\n"
    )
    assert Path("attention.png").read_bytes().startswith(b"\x89PNG")
    assert "<svg" in Path("map.svg").read_text()


def test_weights_as_json(run: Path) -> None:
    found = succeed("attention", run, "ab", "--layer", "0", "--json").json
    assert found["queries"] == found["keys"] == ["<bos>", "a", "b"]
    assert len(found["weights"]) == 2
    for head in found["weights"]:
        assert [sum(row) for row in head] == pytest.approx([1, 1, 1], abs=1e-5)
    assert not Path("attention.png").exists()


def test_heads_are_ranked(run: Path) -> None:
    rows = succeed("heads", run, "text.txt", "--by", "distance", "--json").json
    assert [(row["layer"], row["head"]) for row in rows] in ([(0, 0), (0, 1)], [(0, 1), (0, 0)])
    assert rows[0]["distance"] >= rows[1]["distance"]
    assert rows[0]["bracket"] is None
    Path("brackets.txt").write_text("f(x)[1]" * 20)
    assert succeed("heads", run, "brackets.txt", "--windows", "2", "--json").json[0]["bracket"] > 0
    lines = succeed("heads", run, "text.txt").out.splitlines()
    assert lines[0].split() == [
        "layer",
        "head",
        "entropy,",
        "bits",
        "distance,",
        "tokens",
        "previous",
        "first",
        "bracket",
    ]
    assert len(lines) == 4


def test_what_cannot_be_drawn(run: Path) -> None:
    Path("there.png").touch()
    refuse("attention", run, "text", "--output", "there.png", says="there.png is there already")
    refuse("attention", run, "text", "--output", "map.txt", says="name a .png, .svg or .pdf file")
    refuse("attention", run, "text", "--output", "nowhere/map.png", says="there is no folder")
    refuse("attention", run, "text", "--head", "0", says="--head needs --layer")
    refuse("attention", run, "text", "--layer", "1", says="there is no layer 1: they are 0 to 0")
    refuse("attention", run, "text", "--layer", "0", "--head", "2", says="there is no head 2: they are 0 to 1")
    refuse("attention", run, "text", "--kind", "cross", says="no 'cross' attention")
    refuse("attention", run, "", says="the text is empty")
    refuse("attention", run, "x" * 16, says="the model's 16 positions")
    refuse("attention", "nowhere", "text", says="there is no run folder nowhere")
    refuse("heads", run, "missing.txt", says="no such file or folder")
    refuse("heads", run, "text.txt", "--windows", "0", says="windows = 0")
