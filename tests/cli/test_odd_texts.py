"""Texts of all kinds given to the commands that look inside: shown as they are, or refused in one line."""

from pathlib import Path

import pytest

from helpers.command_line import refuse, succeed
from helpers.pages import parse_page
from helpers.runs import make_model, write_finished_run
from smht.tokenization import build_tokenizer

EMOJI_AND_HEBREW = "a 😀 שלום"
TEXTS = (EMOJI_AND_HEBREW, "<img src=x onerror=alert(1)>", "[red]$x_1$ {0} %s", "a\tb\r\nc\x1b[2J", "-")
LONGEST = 31
"""Letters that fit the context beside the begin token."""


@pytest.fixture(scope="module")
def letters(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run whose tokens are letters, so that an emoji is one token."""
    tokenizer = build_tokenizer("char", TEXTS)
    model = make_model(vocab_size=len(tokenizer), max_position_embeddings=LONGEST + 1)
    return write_finished_run(tmp_path_factory.mktemp("letters"), model, tokenizer).path


@pytest.mark.parametrize("odd", TEXTS)
def test_any_text_is_shown_as_it_is(letters: Path, odd: str) -> None:
    count = len(odd)
    steps = succeed("trace", letters, "--json", "--", odd).json
    assert steps[0]["shape"] == [1, count + 1]
    assert "layer 0 head 1" in succeed("ablate", letters, "--drop", "0.1", "--tokens", "--", odd).out
    tokens = succeed("ablate", letters, "--drop", "0.1", "--json", "--", odd).json["tokens"]
    assert "".join(token["token"] for token in tokens) == odd
    found = succeed("attention", letters, "--json", "--", odd).json
    assert "".join(found["keys"][1:]) == odd
    succeed("attention", letters, "--layer", "0", "--head", "0", "--", odd)
    assert Path("attention.png").read_bytes().startswith(b"\x89PNG")
    succeed("explorer", "--save", "page.html", "--", letters, odd)
    page = parse_page(Path("page.html").read_text(encoding="utf-8"))
    assert not page.all("script") and not page.all("b")
    Path("odd.txt").write_bytes(odd.encode())
    assert {row["head"] for row in succeed("heads", letters, "odd.txt", "--json").json} == {0, 1}
    assert succeed("ablate", letters, "odd.txt", "--files", "--rank", "--json").json["targets"] == count


def test_the_longest_text_that_fits_and_one_letter_more(letters: Path) -> None:
    fits, too_long = "a" * LONGEST, "a" * (LONGEST + 1)
    assert succeed("trace", letters, fits, "--json").json[0]["shape"] == [1, LONGEST + 1]
    assert succeed("ablate", letters, fits, "--drop", "0.0", "--json").json["targets"] == LONGEST
    succeed("attention", letters, fits)
    succeed("explorer", letters, fits, "--save", "page.html")
    for arguments in (("trace",), ("ablate", "--drop", "0.0"), ("attention", "--output", "other.png")):
        refuse(*arguments, letters, too_long, says="the model's 32 positions")
    refuse("explorer", letters, too_long, "--save", "other.html", says=("reads at most 32", "take 1 away"))
    Path("long.txt").write_text(too_long)
    assert succeed("ablate", letters, "long.txt", "--files", "--rank", "--json").json["targets"] == LONGEST + 1


def test_half_a_character_and_no_character(letters: Path) -> None:
    for text, says in (("a\ud800", "half a character at place 1"), ("", "the text is empty")):
        for arguments in (("trace",), ("ablate", "--drop", "0.0"), ("attention",)):
            refuse(*arguments, letters, text, says=says)
        refuse("explorer", letters, text, "--save", "page.html", says=says)


def test_heads_and_blocks_that_are_not_there(letters: Path) -> None:
    for arguments in (("trace", letters, "a"), ("attention", letters, "a")):
        refuse(*arguments, "--layer", "1", says=" 1: they are 0 to 0")
        refuse(*arguments, "--layer", "0", "--head", "2", says="there is no head 2: they are 0 to 1")
    for option in ("--drop", "--freeze", "--swap=0.0:", "--swap-weights=0.0:"):
        given = (f"{option}1.0",) if "=" in option else (option, "1.0")
        says = "cannot change places" if option == "--swap=0.0:" else "there is no layer 1: they are 0 to 0"
        refuse("ablate", letters, "a", *given, says=says)
