import io
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from smht.models import SmhtConfig, SmhtForCausalLM
from smht.tasks.language_modelling import LanguageModelling, TextData, WindowedText, excerpt
from smht.tasks.task import DataRequest
from smht.tasks.text_files import STANDARD_LIBRARY
from smht.tasks.token_stream import evaluate, tokenize
from smht.tokenization import build_tokenizer

BYTES = build_tokenizer("byte", None)


def make_model(context: int = 16) -> SmhtForCausalLM:
    torch.manual_seed(0)
    sizes = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "max_position_embeddings": context}
    return SmhtForCausalLM(SmhtConfig(**sizes)).eval()


def read(data: bytes, **request: object) -> TextData:
    return LanguageModelling().read(DataRequest(("-",), **request), stdin=io.BytesIO(data))  # pyright: ignore


def test_without_text_it_is_the_standard_library() -> None:
    data = LanguageModelling().read(DataRequest())
    assert data.whole.sources == (STANDARD_LIBRARY,)
    assert LanguageModelling().next_command("run", data) == "smht generate run 'def '"


def test_a_part_is_held_out_or_given(tmp_path: Path) -> None:
    data = read(b"0123456789" * 10)
    assert (data.training.num_bytes, data.validation.num_bytes) == (90, 10)
    (tmp_path / "other.txt").write_bytes(b"other")
    data = read(b"0123456789", validation_sources=(str(tmp_path / "other.txt"),))
    assert (data.training.num_bytes, data.validation.num_bytes) == (10, 5)
    assert data.manifest()["validation"]["sources"] == [str(tmp_path / "other.txt")]
    assert data.standard_input() == b"0123456789"
    assert LanguageModelling().next_command("a run", data) == "smht generate 'a run' 'The '"


def test_the_score_is_that_of_the_whole_stream_and_of_a_part() -> None:
    data, model = read(bytes(range(97, 123)) * 40), make_model()
    examples = data.encode(BYTES, 16, "strict")
    assert isinstance(examples, WindowedText)
    whole = evaluate(model, tokenize(BYTES, data.validation), 16)
    score = examples.score(model)
    assert score.loss == whole.loss
    assert score.metrics == {"bits_per_byte": whole.bits_per_byte}
    part = examples.score(model, limit=2)
    assert part.loss == pytest.approx(evaluate(model, tokenize(BYTES, data.validation), 16).loss, rel=0.1)
    assert part.loss != whole.loss
    assert examples.token_counts == (len(examples.training), len(examples.validation))


def test_the_sample_goes_on_from_held_out_text() -> None:
    lines = b"".join(b"line number %d\n" % i for i in range(400))
    data = read(lines)
    shown = LanguageModelling().sample(make_model(), BYTES, data)
    before, _, after = shown.partition("--- the model goes on\n")
    prompt = before.removeprefix("--- held-out text\n")
    assert prompt.encode() in data.validation.documents[0].data
    assert after


@given(st.text("ab\n", max_size=2000))
def test_an_excerpt_is_whole_lines_of_the_text(text: str) -> None:
    shown = excerpt(text.encode())
    assert len(shown) <= 400
    place = text.index(shown, text.find("\n", len(text) // 2) + 1)
    assert place == 0 or text[place - 1] == "\n"
    end = text[place + len(shown) :]
    assert shown.endswith("\n") or not end or "\n" not in shown


@pytest.mark.parametrize(
    ("data", "expected"),
    [
        (b"", ""),
        (b"one line", "one line"),
        (b"a\nb\nc\nd\n", "d\n"),
        (b"a\n" * 150 + b"x\ny" * 300, None),
        (b"\xff\n\xff\xfe\n\xff\n", "\ufffd\n"),
    ],
)
def test_excerpts(data: bytes, expected: str | None) -> None:
    if expected is not None:
        assert excerpt(data) == expected
    else:
        assert excerpt(data).count("\n") > 50
