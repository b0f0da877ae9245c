import json
import math
from pathlib import Path

import pytest

from helpers.command_line import refuse, succeed

CPU = ("--device", "cpu")


def test_json(run: Path) -> None:
    values = succeed("evaluate", run, "text.txt", *CPU, "--json").json
    assert set(values) == {"loss", "perplexity", "bits_per_byte", "tokens", "bytes"}
    assert values["tokens"] == values["bytes"] == Path("text.txt").stat().st_size
    assert values["perplexity"] == pytest.approx(math.exp(values["loss"]))
    assert values["bits_per_byte"] == pytest.approx(values["loss"] / math.log(2))


def test_table(run: Path) -> None:
    values = succeed("evaluate", run, "text.txt", *CPU, "--json").json
    result = succeed("evaluate", run, "text.txt", *CPU)
    assert result.err == ""
    assert [" ".join(line.split()) for line in result.out.splitlines()] == [
        f"loss {values['loss']:.4f} nats per token",
        f"perplexity {values['perplexity']:.3f}",
        f"bits per byte {values['bits_per_byte']:.4f}",
        f"predicted {values['tokens']:,} tokens, {values['bytes']:,} bytes",
    ]


def test_an_infinite_perplexity_is_null(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from smht.tasks import token_stream

    monkeypatch.setattr(token_stream, "evaluate", lambda *a: token_stream.Evaluation(8000.0, 10, 10))
    assert succeed("evaluate", run, "text.txt", *CPU, "--json").json["perplexity"] is None


def test_texts_come_from_standard_input_folders_and_globs(run: Path, text: bytes) -> None:
    Path("folder").mkdir()
    Path("folder/a.txt").write_bytes(text)
    expected = succeed("evaluate", run, "text.txt", *CPU, "--json").json
    for where in ("-", "folder", "f*/*.txt"):
        assert succeed("evaluate", run, where, *CPU, "--json", stdin=text).json == expected


def test_overlapping_windows_predict_every_token_once(run: Path) -> None:
    loss = {}
    for stride in (16, 4):
        values = succeed("evaluate", run, "text.txt", *CPU, "--json", "--stride", stride).json
        assert values["tokens"] == Path("text.txt").stat().st_size
        loss[stride] = values["loss"]
    assert loss[16] == succeed("evaluate", run, "text.txt", *CPU, "--json", "--context", "16").json["loss"]
    assert loss[16] != loss[4]


def test_a_text_shorter_than_the_context(run: Path) -> None:
    Path("short").write_bytes(b"ab")
    assert succeed("evaluate", run, "short", *CPU, "--json").json["tokens"] == 2


def test_replace_reads_what_is_no_text(train) -> None:
    train("--tokenizer", "char", "--output", "run")
    Path("latin-1").write_bytes(b"caf\xe9 " * 9)
    refuse("evaluate", "run", "latin-1", says=("latin-1: not UTF-8", "0xe9 at offset 3", "--errors replace"))
    assert succeed("evaluate", "run", "latin-1", *CPU, "--errors", "replace", "--json").json["bytes"] == 45


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("missing.txt",), "no such file or folder: 'missing.txt'"),
        (("txt.txt",), "did you mean text.txt?"),
        (("empty",), "'empty' is empty"),
        (("-",), "standard input is empty"),
        ((), "missing argument 'texts'"),
        (("text.txt", "--context", "0"), "context = 0"),
        (("text.txt", "--context", "17"), ("context = 17", "16")),
        (("text.txt", "--stride", "0"), "stride = 0"),
        (("text.txt", "--stride", "17"), "stride = 17"),
        (("text.txt", "--context", "8", "--stride", "9"), "stride = 9"),
        (("text.txt", "--errors", "ignore"), ("'ignore'", "'replace'")),
        (("text.txt", "--device", "cudda"), ("'cudda'", "'cuda'")),
    ],
)
def test_refusals(run: Path, arguments: tuple[str, ...], says: str) -> None:
    Path("empty").touch()
    refuse("evaluate", run, *arguments, says=says)


def test_it_changes_nothing(copied_run: Path) -> None:
    before = json.loads((copied_run / "run.json").read_text())
    succeed("evaluate", copied_run, "text.txt", *CPU)
    assert json.loads((copied_run / "run.json").read_text()) == before
