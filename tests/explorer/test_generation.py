from collections.abc import Iterator

import pytest
import torch

from helpers.pages import parse_page
from helpers.subjects import subject, translator
from smht.errors import UsageError
from smht.explorer.generation import Continuation, added_text, begin, draw, extend
from smht.explorer.generation_panel import Generator, Growth, settings_of, typed_of
from smht.explorer.head_changes import HeadChanges
from smht.explorer.reading import Typed
from smht.explorer.subject import PRESET_IDS, Subject, preset_subject
from smht.explorer.viewer import Viewer
from smht.inspection import Drop, Freeze, Swap, edited_heads
from smht.tasks.generation import Sampling, encode_prompt, stream_text
from smht.tokenization import EOS_ID


def extended(one: Subject, typed: Typed, sampling: Sampling, count: int) -> Continuation:
    so_far = begin(sampling.seed)
    for _ in range(count):
        so_far = extend(one, typed, so_far, sampling)
    return so_far


@pytest.mark.parametrize(
    "sampling", [Sampling(0, max_new_tokens=80), Sampling(1.3, top_k=20, max_new_tokens=80, seed=7)]
)
def test_the_same_text_as_smht_generate_far_beyond_the_context(sampling: Sampling) -> None:
    one = subject()
    so_far = extended(one, Typed("ab"), sampling, 80)
    expected = "".join(stream_text(one.model, one.tokenizer, encode_prompt(one.tokenizer, b"ab"), sampling))
    assert added_text(one, so_far) == expected
    assert len(so_far.ids) == 80 or so_far.has_ended


def test_a_token_has_the_probability_before_temperature_and_top_k() -> None:
    one = preset_subject()
    so_far = extended(one, Typed(PRESET_IDS), Sampling(0.1, top_k=1), 2)
    ids = torch.tensor([[17, 52, 3, 88, *so_far.ids]])
    with torch.no_grad():
        probabilities = one.model(input_ids=ids).logits[0].softmax(-1)
    assert so_far.ids == tuple(probabilities[place].argmax().item() for place in (3, 4))
    for place, probability in zip((3, 4), so_far.probabilities, strict=True):
        assert probability == pytest.approx(float(probabilities[place].max()), rel=1e-5)


def test_edited_heads_are_edited_here_too() -> None:
    one = preset_subject()
    edits = [Drop(0, 0), Freeze(0, 3), Swap(0, 1, 2)]
    names = {0: ("block 0 head 0",), 1: ("block 0 head 3",), 2: ("block 0 head 1", "block 0 head 2")}
    inputs = {"input_ids": torch.tensor([[17, 52, 3, 88]])}
    for statistics in ("live", "held"):
        typed = Typed(PRESET_IDS, changes=HeadChanges(names[0], names[1], names[2], statistics=statistics))
        so_far = extended(one, typed, Sampling(0), 1)
        with torch.no_grad(), edited_heads(one.model, edits, statistics, inputs):
            logits = one.model(**inputs).logits[0, -1]
        assert so_far.ids == (int(logits.argmax()),)
        assert so_far.probabilities[0] == pytest.approx(float(logits.softmax(-1).max()), rel=1e-5)


def test_a_translator_goes_on_from_what_is_written() -> None:
    one = translator()
    so_far = extended(one, Typed("source", "be"), Sampling(0), 3)
    ids = torch.tensor([[256, *b"be"]])
    inputs = one.inputs("source")["input_ids"]
    expected = one.model.generate(
        input_ids=inputs, decoder_input_ids=ids, max_new_tokens=3, do_sample=False, suppress_tokens=[256, 258]
    )
    assert list(so_far.ids) == expected[0, 3:].tolist()


def test_after_the_end_there_is_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    one = subject()
    monkeypatch.setattr("smht.explorer.generation.choose", lambda *arguments: EOS_ID)
    so_far = extended(one, Typed("ab"), Sampling(), 3)
    assert so_far.ids == (EOS_ID,) and so_far.has_ended
    assert "The model ends the text here." in draw(one, so_far)
    steps = list(Generator(Viewer([one])).several(Typed("ab"), Sampling(), None))
    assert len(steps) == 1


def test_text_of_a_model_is_shown_as_text() -> None:
    one = subject()
    so_far = Continuation(tuple(b"<b>x\xff"), (0.5,) * 5, begin(0).randomness)
    page = parse_page(draw(one, so_far))
    assert page.all("pre")[0].text == "<b>x�"
    assert [item.text for item in page.all("li")] == [f"{name}50.0%" for name in ("<", "b", ">", "x", "‹FF›")]
    assert "Nothing added yet." in draw(one, begin(0))


@pytest.fixture
def generator() -> Iterator[Generator]:
    yield Generator(Viewer([preset_subject(), preset_subject(seed=1)]))


def test_both_models_go_on_side_by_side(generator: Generator) -> None:
    typed, sampling = Typed(PRESET_IDS), Sampling(0, max_new_tokens=3)
    steps = list(generator.several(typed, sampling, None))
    assert len(steps) == 3
    growth = steps[-1][0]
    assert growth is not None
    for one, so_far in zip(generator.viewer.subjects, growth.continuations, strict=True):
        assert so_far.ids == extended(one, typed, sampling, 3).ids
    more, html = generator.one(typed, sampling, growth)
    assert more is not None and [len(so_far.ids) for so_far in more.continuations] == [4, 4]
    assert html.count("Tokens added") == 2


@pytest.mark.parametrize("change", ["text", "seed"])
def test_another_text_or_seed_starts_over(generator: Generator, change: str) -> None:
    growth, _ = generator.one(Typed(PRESET_IDS), Sampling(), None)
    typed = Typed("17, 52" if change == "text" else PRESET_IDS)
    growth, _ = generator.one(typed, Sampling(seed=int(change == "seed")), growth)
    assert growth is not None and [len(so_far.ids) for so_far in growth.continuations] == [1, 1]


def test_what_was_added_becomes_the_text(generator: Generator) -> None:
    typed = Typed(PRESET_IDS, changes=HeadChanges(("block 0 head 0",)))
    growth, _ = generator.one(typed, Sampling(0), None)
    assert isinstance(growth, Growth)
    index = growth.continuations[0].ids[0]
    assert generator.text_with(typed, growth) == Typed(f"{PRESET_IDS}, {index}", changes=typed.changes)
    assert generator.text_with(Typed("5"), growth) == Typed("5")
    assert generator.text_with(typed, None) == typed
    one = Generator(Viewer([translator()]))
    growth, _ = one.one(Typed("source", "be"), Sampling(0), None)
    assert one.text_with(Typed("source", "be"), growth).target.startswith("be")


def test_what_cannot_be_read_is_one_message(generator: Generator) -> None:
    ((growth, html),) = generator.several(Typed("<i>"), Sampling(), None)
    assert growth is None
    assert "is no list of token ids" in html and "&lt;i&gt;" in html


def test_fields_as_settings() -> None:
    assert settings_of(None, None, None, None) == Sampling(0.8, None, max_new_tokens=20, seed=0)
    assert settings_of(0, 0, 5, 3) == Sampling(0, None, max_new_tokens=5, seed=3)
    assert settings_of(1.5, 7, 1, 0) == Sampling(1.5, 7, max_new_tokens=1)
    for wrong in ((-1, 0, 1, 0), (1, -1, 1, 0), (1, 1, 0, 0), (1, 1, 1, -1)):
        with pytest.raises(UsageError):
            settings_of(*wrong)
    assert typed_of(["a", None, ["x"], None, None, None, None]) == Typed("a", "", HeadChanges(("x",)))
    changes = HeadChanges((), ("y",), ("u", "v"), "weights", "held")
    assert typed_of([None, "b", None, ["y"], ["u", "v"], "weights", "held"]) == Typed("", "b", changes)
