import io
import math
import sys
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path
from typing import Any

import pytest
import torch

from helpers.command_line import check_error_line, refuse, smht, succeed
from smht import SmhtForCausalLM
from smht.cli import generate as command
from smht.cli import main, output
from smht.tasks import generation
from smht.tokenization import BOS_ID

SHORT = ("--max-new-tokens", "12", "--device", "cpu")


def texts(*arguments: object, stdin: bytes = b"") -> list[str]:
    return succeed("generate", *arguments, *SHORT, "--json", stdin=stdin).json["texts"]


@pytest.fixture
def prompts(monkeypatch: pytest.MonkeyPatch) -> list[list[int]]:
    """The token ids that models were asked to continue."""
    seen: list[list[int]] = []

    def watch(model: Any, tokenizer: Any, prompt: list[int], sampling: Any):
        seen.append(prompt)
        yield "…"

    monkeypatch.setattr(generation, "stream_text", watch)
    return seen


def test_the_prompt_is_continued(run: Path) -> None:
    (text,) = texts(run, "the ")
    assert succeed("generate", run, "the ", *SHORT) == succeed("generate", run, "the ", *SHORT)
    assert succeed("generate", run, "the ", *SHORT).out == f"the {text}\n"
    assert succeed("generate", run, "the ", *SHORT).err == ""


def test_a_seed_chooses_the_text(run: Path) -> None:
    assert texts(run, "a", "--seed", "1") == texts(run, "a", "--seed", "1") != texts(run, "a", "--seed", "2")
    likeliest = [texts(run, "a", "--seed", seed, "--temperature", "0") for seed in "12"]
    assert likeliest[0] == likeliest[1] == texts(run, "a", "--top-k", "1", "--seed", "3")


def test_a_model_that_diverged_is_refused_on_a_line_of_its_own(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(SmhtForCausalLM, "_score", lambda self, hidden, *_: (torch.full((1, 1, 300), math.nan), None))
    result = smht("generate", run, "the ", *SHORT)
    assert (result.code, result.out) == (2, "the \n")
    check_error_line(result.err, "scores that are no numbers")


def test_samples_count_seeds_up(run: Path) -> None:
    both = texts(run, "a", "--samples", "2", "--seed", "1")
    assert both == [*texts(run, "a", "--seed", "1"), *texts(run, "a", "--seed", "2")]
    out = succeed("generate", run, "a", *SHORT, "--samples", "2", "--seed", "1").out
    assert out == f"--- sample 1 of 2\na{both[0]}\n--- sample 2 of 2\na{both[1]}\n"


def test_json_holds_the_prompt(run: Path) -> None:
    values = succeed("generate", run, 'é "<eos>"', *SHORT, "--json").json
    assert values["prompt"] == 'é "<eos>"'
    assert set(values) == {"prompt", "texts"}


def test_standard_input_is_the_prompt(run: Path) -> None:
    expected = texts(run, "the split")
    assert texts(run, stdin=b"the split") == expected
    assert texts(run, "-", stdin=b"the split") == expected
    assert texts(run, "the split", stdin=b"something else") == expected


@pytest.mark.parametrize("argument", [(), ("-",)])
def test_a_closed_standard_input_is_an_empty_prompt(
    run: Path, prompts: list[list[int]], monkeypatch: pytest.MonkeyPatch, argument: tuple[str, ...]
) -> None:
    monkeypatch.setattr(sys, "stdin", None)
    command.generate(run, *argument, device="cpu")
    assert prompts == [[BOS_ID]]


def test_no_prompt_is_the_begin_of_a_text(run: Path, prompts: list[list[int]]) -> None:
    texts(run)
    assert prompts == [[BOS_ID]]


@pytest.mark.parametrize("prompt", ["<eos>", "<bos><pad>", "a<eos>b"])
def test_special_tokens_in_a_prompt_stay_text(run: Path, prompts: list[list[int]], prompt: str) -> None:
    texts(run, prompt)
    texts(run, stdin=prompt.encode())
    assert prompts == [[BOS_ID, *prompt.encode()]] * 2


def test_bytes_take_a_prompt_that_is_no_text(run: Path, prompts: list[list[int]]) -> None:
    # Python gives an argument that is not UTF-8 as surrogates.
    texts(run, b"a\xff\xfe".decode("utf-8", "surrogateescape"))
    texts(run, stdin=b"a\xff\xfe")
    assert prompts == [[BOS_ID, ord("a"), 0xFF, 0xFE]] * 2


def test_other_tokenizers_refuse_a_prompt_that_is_no_text(train) -> None:
    train("--tokenizer", "char", "--output", "run")
    for arguments, stdin in (((b"a\xff".decode("utf-8", "surrogateescape"),), b""), (("-",), b"a\xff")):
        refuse("generate", "run", *arguments, stdin=stdin, says=("the prompt is not UTF-8", "0xff at offset 1"))


def test_a_prompt_longer_than_the_context_is_continued_from_its_end(run: Path) -> None:
    prompt = "the split head returns for the block in range"
    result = succeed("generate", run, prompt, *SHORT, "--json")
    assert result.err == f"the prompt has {len(prompt) + 1} tokens and the context is 16: going on from its last 8\n"
    assert result.json["texts"] == texts(run, "x" * 40 + prompt[-8:])


def test_text_grows_longer_than_the_context(run: Path) -> None:
    text = succeed("generate", run, "a", "--max-new-tokens", "60", "--seed", "4", "--device", "cpu").out
    assert len(text.encode("utf-8", "replace")) > 3 * 16


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("--temperature", "-1"), "temperature = -1.0"),
        (("--temperature", "nan"), "temperature = nan"),
        (("--top-k", "0"), "top_k = 0"),
        (("--top-p", "0"), "top_p = 0.0"),
        (("--top-p", "1.5"), "top_p = 1.5"),
        (("--max-new-tokens", "0"), "max_new_tokens = 0"),
        (("--samples", "0"), "samples = 0"),
        (("--seed", "-1"), "seed = -1"),
        (("--seed", "99999999999999999999"), "seed = 99999999999999999999"),
        (("--temprature", "1"), "--temperature"),
        (("--device", "gpu"), ("'gpu'", "'cuda'")),
    ],
)
def test_settings_out_of_range(run: Path, arguments: tuple[str, str], says: str) -> None:
    refuse("generate", run, "a", *arguments, says=says)


def test_a_terminal_gets_no_control_characters(monkeypatch: pytest.MonkeyPatch, capsys) -> None:
    text = "a\x1b[2Jb\x07\x9b\tc\r\nd é"
    assert output.harmless(text) == text
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True, raising=False)
    assert output.harmless(text) == "a\ufffd[2Jb\ufffd\ufffd\tc\r\nd é"


class ClosedPipe(io.StringIO):
    """Standard output whose reader has gone after the first words."""

    def write(self, text: str) -> int:
        if self.tell() > 3:
            raise BrokenPipeError
        return super().write(text)


def test_a_reader_that_has_had_enough_ends_it_quietly(run: Path) -> None:
    out, err = ClosedPipe(), io.StringIO()
    with redirect_stdout(out), redirect_stderr(err):
        assert main.run(["generate", str(run), "the", "--max-new-tokens", "100", "--device", "cpu"]) == 0
    assert len(out.getvalue()) < 20
    assert err.getvalue() == ""


def test_a_missing_run() -> None:
    assert smht("generate", "nowhere", "a").err.startswith("smht: there is no run folder nowhere")
