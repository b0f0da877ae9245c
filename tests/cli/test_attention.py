import errno
from pathlib import Path
from xml.etree import ElementTree

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


def test_tokens_that_are_no_letters_have_names_and_spoil_no_picture(run: Path) -> None:
    found = succeed("attention", run, "é\x01--", "--layer", "0", "--json").json
    assert found["keys"] == ["<bos>", "‹C3›", "‹A9›", "\x01", "-", "-"]
    succeed("attention", run, "é\x01--$", "--layer", "0", "--head", "0", "--output", "odd.svg")
    assert (
        "U+0001" in "".join(ElementTree.parse("odd.svg").getroot().itertext())
        or "U+0001" in Path("odd.svg").read_text()
    )


def test_a_text_that_names_a_file_is_read_as_it_stands_and_that_is_said(run: Path) -> None:
    for command, rest in (("attention", ("--layer", "0", "--json")), ("trace", ("--json",)), ("ablate", ("--rank",))):
        assert "note: the model reads the name text.txt" in succeed(command, run, "text.txt", *rest).err
    assert "say --files" in succeed("ablate", run, "text.txt", "--rank").err


def test_a_picture_is_written_whole_or_not_at_all(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def write_half(path: Path, data: bytes) -> int:
        with path.open("wb") as file:
            file.write(data[: len(data) // 2])
        raise OSError(errno.ENOSPC, "No space left on device", str(path))

    monkeypatch.setattr(Path, "write_bytes", write_half)
    refuse("attention", run, "ab", "--output", "half.svg", says="No space left", code=1)


def test_where_a_picture_goes_is_checked_first(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("smht.cli.attention.load", None)
    refuse("attention", run, "ab", "--output", "picture.bmp", says="name a .png, .svg or .pdf file")
