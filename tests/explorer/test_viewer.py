import json
import shutil
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from helpers.pages import Element, parse_page
from helpers.runs import write_finished_run
from helpers.subjects import classifier, subject, translator
from smht.errors import UsageError
from smht.explorer.head_changes import HeadChanges
from smht.explorer.reading import Reader, Typed
from smht.explorer.sections import SECTIONS
from smht.explorer.subject import PRESET_IDS, Subject, preset_subject, run_subject
from smht.explorer.viewer import Viewer
from smht.inspection import head_logits, trace
from smht.inspection.display import visible
from smht.tasks.classification import classify, encode_text

BY_NAME = {section.name: place for place, section in enumerate(SECTIONS)}
KINDS = {"decoder": subject, "translator": translator, "encoder": classifier, "labels": lambda: classifier("decoder")}


def tables(viewer: Viewer, typed: Typed, section: str, *values: object) -> list[Element]:
    """The tables that a section shows."""
    view = viewer.view(typed)
    if values:
        _, part = viewer.part(SECTIONS[BY_NAME[section]], typed, values)
        return parse_page(part.html).all("table")
    return parse_page(view.parts[BY_NAME[section]].html).all("table")


def rows(table: Element) -> list[list[str]]:
    """A table's body as text."""
    (body,) = table.all("tbody")
    return [[cell.text for cell in row.inside] for row in body.all("tr")]


def test_a_token_has_the_probability_that_the_model_gave_it() -> None:
    one = subject()
    viewer, text = Viewer([one]), "def f(x):"
    ids = torch.tensor([[256, *text.encode()]])
    log = one.model(input_ids=ids).logits[0].detach().log_softmax(-1)
    loss = -float(log[:-1].gather(1, ids[0, 1:, None]).mean())
    html = viewer.view(Typed(text)).parts[0].html
    assert f"Loss: {loss:.4f} nats a token over 9 tokens." in html
    *_, numbers = tables(viewer, Typed(text), "tokens")
    assert rows(numbers)[0] == ["0", "<bos>", "256", "", ""]
    for place, (number, name, index, probability, rank) in enumerate(rows(numbers)[1:], 1):
        assert (number, name, index) == (str(place), visible(text[place - 1]), str(int(ids[0, place])))
        assert probability == f"{float(log[place - 1, ids[0, place]].exp()):.2%}"
        assert int(rank) == int((log[place - 1] > log[place - 1, ids[0, place]]).sum()) + 1


def test_what_comes_after_any_token() -> None:
    one = preset_subject()
    best = one.model(input_ids=torch.tensor([[17, 52, 3, 88]])).logits[0, 1].softmax(-1).topk(10)
    shown = rows(tables(Viewer([one]), Typed(PRESET_IDS), "tokens", 1)[0])
    assert [row[0] for row in shown] == [str(index) for index in best.indices.tolist()]
    assert [row[1] for row in shown] == [f"{value:.2%}" for value in best.values.tolist()]


@pytest.mark.parametrize("kind", KINDS)
def test_every_step_of_every_kind_of_model_can_be_seen(kind: str) -> None:
    one = KINDS[kind]()
    viewer, typed = Viewer([one]), Typed("ab<i>", "x" if one.has_two_stacks else "")
    readings = viewer.read(typed)
    (choice,) = SECTIONS[BY_NAME["steps"]].choices(readings, [])
    steps = trace(one.model, **one.inputs(typed.text, typed.target)).steps
    assert len({value for _, value in choice.options}) == len(choice.options) == len(steps)
    for (_, title), step in zip(choice.options, steps, strict=True):
        html = SECTIONS[BY_NAME["steps"]].show(readings[0], [title])
        parse_page(html)
        assert f"({', '.join(map(str, step.shape))})" in html
        assert step.number in title and step.name in title


def test_the_numbers_of_a_step() -> None:
    one = preset_subject()
    steps = {step.number: step for step in trace(one.model, input_ids=torch.tensor([[17, 52, 3, 88]])).steps}
    for title, value in (
        ("1 token embedding", steps["1"].value[0]),
        ("3e weighted values, block 0", steps["3e"].value[0].flatten(1)),
        ("3d attention weights, block 0", steps["3d"].value[0, 0]),
    ):
        table = tables(Viewer([one]), Typed(PRESET_IDS), "steps", title)[0]
        numbers = [[float(cell.replace("−", "-")) for cell in row[1:]] for row in rows(table)]
        torch.testing.assert_close(torch.tensor(numbers), value, atol=5e-5, rtol=0)


def test_steps_are_walked_one_by_one_and_not_beyond_the_ends() -> None:
    viewer = Viewer([preset_subject()])
    choice = viewer.view(Typed(PRESET_IDS)).parts[BY_NAME["steps"]].choices[0]
    titles = [value for _, value in choice.options]
    assert choice.walks
    assert choice.neighbour(titles[0], 1) == titles[1]
    assert choice.neighbour(titles[0], -1) == titles[0]
    assert choice.neighbour(titles[-1], 1) == titles[-1]
    assert choice.neighbour("gone", 1) == titles[1]


def test_attention_of_any_head() -> None:
    one = subject()
    viewer, text = Viewer([one]), "a (b) c"
    weights = trace(one.model, **one.inputs(text)).select("3d", 1)[0].value[0]
    shown, looks, statistics = tables(viewer, Typed(text), "attention", "block 1", 2, 0, 3)
    numbers = torch.tensor([[float(cell) for cell in row[1:]] for row in rows(shown)])
    torch.testing.assert_close(numbers, weights[2], atol=5e-5, rtol=0)
    assert sorted(float(row[1]) for row in rows(looks)) == sorted(float(f"{w:.4f}") for w in weights[2, 3, :4].tolist())
    assert len(rows(statistics)) == 3


def test_attention_of_a_long_text_is_shown_in_parts() -> None:
    one = subject(max_position_embeddings=150)
    viewer, typed = Viewer([one]), Typed("x" * 140)
    choices = viewer.view(typed).parts[BY_NAME["attention"]].choices
    assert [name for name, _ in choices[2].options] == [
        *("whole text", "tokens 0 to 63", "tokens 64 to 127", "tokens 128 to 140")
    ]
    for _, part in choices[2].options:
        _, shown = viewer.part(SECTIONS[BY_NAME["attention"]], typed, ("block 0", 0, part, 5))
        assert len(parse_page(shown.html).all("svg")) == 1


def test_cross_attention_is_to_what_was_read() -> None:
    one = translator()
    viewer, typed = Viewer([one]), Typed("abc", "xy")
    blocks = [value for _, value in viewer.view(typed).parts[BY_NAME["attention"]].choices[0].options]
    assert blocks[0] == "encoder block 0" and "decoder block 1, to what was read" in blocks
    table = tables(viewer, typed, "attention", "decoder block 1, to what was read", 0, 0, 2)[0]
    assert [cell.text for cell in table.all("th")][1:5] == ["a", "b", "c", "<eos>"]
    assert [row[0] for row in rows(table)] == ["<bos>", "x", "y"]


@pytest.mark.parametrize("kind", KINDS)
def test_contributions_sum_to_the_score(kind: str) -> None:
    one = KINDS[kind]()
    viewer, typed = Viewer([one]), Typed("abc", "xy" if one.has_two_stacks else "")
    choices = viewer.view(typed).parts[BY_NAME["contributions"]].choices
    place, first, second = choices[0].value, choices[1].options[1][1], choices[1].options[3][1]
    numbers = torch.tensor([one.outcome_numbers[name] for name in (first, second)])
    split = head_logits(one.model, numbers, **one.inputs(typed.text, typed.target))
    parts = split.contributions[0].reshape(-1, 3, 2)[place]
    for against, own in (("", parts[:, 0]), (second, parts[:, 0] - parts[:, 1])):
        (table,) = tables(viewer, typed, "contributions", place, first, against)
        values = [float(row[1].replace("−", "-")) for row in rows(table)]
        assert values[:-1] == pytest.approx(own.tolist(), abs=6e-5)
        assert values[-1] == pytest.approx(float(own.sum()), abs=6e-5)
    assert split.note[1:] in viewer.view(typed).parts[BY_NAME["contributions"]].html


def test_a_choice_is_kept_while_it_makes_sense() -> None:
    viewer = Viewer([preset_subject()])
    values = [(1,), ("3d attention weights, block 0",), ("block 0", 3, 0, 1), (1, "5", "")]
    parts = viewer.view(Typed("17, 52, 3"), values).parts
    assert [tuple(choice.value for choice in part.choices) for part in parts] == values
    parts = viewer.view(Typed("17"), values).parts
    assert [part.choices[0].value for part in parts] == [-1, values[1][0], "block 0", -1]
    assert parts[3].choices[1].value == "5"  # offered although it is not among the likeliest


def test_the_last_token_and_the_likeliest_outcome_stay_so_while_the_text_grows() -> None:
    one = preset_subject()
    viewer = Viewer([one])
    values = [[choice.value for choice in part.choices] for part in viewer.view(Typed("17")).parts]
    parts = viewer.view(Typed(PRESET_IDS), values).parts
    assert "What comes after token 3, “88”" in parts[0].html
    assert "What token 3, “88”, looks at" in parts[2].html
    likeliest = int(one.model(input_ids=torch.tensor([[17, 52, 3, 88]])).logits[0, -1].argmax())
    assert f"Score of “{likeliest}”<" in parts[3].html


def test_a_text_is_read_once() -> None:
    reader, one = Reader(), preset_subject()
    reading = reader.read(one, Typed(PRESET_IDS))
    assert reader.read(one, Typed("17,52, 3,88,")) is reading
    assert reader.read(preset_subject(), Typed(PRESET_IDS)) is not reading


def test_old_readings_are_forgotten_when_they_are_large(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("smht.explorer.reading._KEPT_BYTES", 1)
    reader, one = Reader(), preset_subject()
    reading = reader.read(one, Typed(PRESET_IDS))
    assert reader.read(one, Typed(PRESET_IDS)) is reading
    reader.read(one, Typed("1"))
    assert reader.read(one, Typed(PRESET_IDS)) is not reading


def test_two_models_side_by_side() -> None:
    both = Viewer([subject("split one"), subject("dense one", split=(), num_hidden_layers=1)])
    view = both.view(Typed("abc"))
    for part in view.parts:
        assert [article.attributes["aria-label"] for article in parse_page(part.html).all("article")] == [
            *("split one", "dense one")
        ]
    _, part = both.part(SECTIONS[BY_NAME["attention"]], Typed("abc"), ("block 1", 0, 0, 0))
    first, second = parse_page(part.html).all("article")
    assert first.all("table")
    assert "This model has no attention in block 1: choose from block 0." in second.text
    fewer = Viewer([subject("three heads"), subject("two heads", num_attention_heads=2)])
    _, part = fewer.part(SECTIONS[BY_NAME["attention"]], Typed("abc"), ("block 1", 2, 0, 0))
    assert "This model has no head 2: they are 0 to 1." in parse_page(part.html).all("article")[1].text
    _, part = both.part(SECTIONS[BY_NAME["steps"]], Typed("abc"), ("3j heads, block 1",))
    assert "This model has no step 3j heads, block 1." in part.html


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "There is nothing to read: type token ids, such as 17, 52, 3, 88."),
        ("  ", "There is nothing to read"),
        ("1, x", "&#x27;1, x&#x27; is no list of token ids"),
        ("<b>1</b>", "&lt;b&gt;1&lt;/b&gt;"),
        ("100", "Token id 100 is outside the vocabulary of 100 tokens."),
        (", ".join(["1"] * 17), "smht-mini, random weights reads at most 16: take 1 away."),
    ],
)
def test_what_cannot_be_read_is_one_message_and_no_figures(text: str, says: str) -> None:
    viewer = Viewer([preset_subject()])
    view = viewer.view(Typed(text))
    assert says in view.status and view.status.count("<p") == 1
    assert [part.html for part in view.parts] == [""] * len(SECTIONS)
    status, part = viewer.part(SECTIONS[0], Typed(text), (0,))
    assert status == view.status and part.html == ""


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "The text is empty: type something."),
        ("é" * 16, "small reads at most 32: take 1 away."),
        ("a\ud800", "half a character at place 1"),
    ],
)
def test_texts_that_cannot_be_read(text: str, says: str) -> None:
    view = Viewer([subject()]).view(Typed(text))
    assert says in view.status and view.status.count("<p") == 1
    assert not any(part.html for part in view.parts)


@settings(max_examples=8)
@given(st.text(min_size=1, max_size=6))
def test_any_text_is_shown_as_text(text: str) -> None:
    viewer = Viewer([_SMALL])
    view = viewer.view(Typed(text))
    for html in (view.status, *(part.html for part in view.parts)):
        page = parse_page(html)
        assert not page.all("script") and not page.all("b")


@pytest.mark.parametrize("text", ["😀", "שלום", "a\tb\n", "\x00\x1b[2J", "<img src=x onerror=alert(1)>"])
def test_odd_texts(text: str) -> None:
    one = subject(max_position_embeddings=64)
    html = Viewer([one]).view(Typed(text)).parts[0].html
    page = parse_page(html)
    assert not page.all("img")
    items = page.all("li")
    assert len(items) == len(text.encode()) + 1


def test_what_a_token_looks_like() -> None:
    labels = subject().labels([256, *b" a\n\t\xf0\x9f", *b"\x00"])
    assert labels == ["<bos>", "␣", "a", "⏎", "⇥", "‹F0›", "‹9F›", "U+0000"]


def test_outcomes_have_names_of_their_own() -> None:
    for one in (preset_subject(), subject(), classifier()):
        assert len(one.outcome_numbers) == len(one.outcomes)
        assert all(one.outcomes[number] == name for name, number in one.outcome_numbers.items())
    assert subject(vocab_size=262).outcomes[-1] == "no token (261)"


def test_a_classifier_gives_labels() -> None:
    one = classifier()
    probabilities = classify(one.model, [encode_text(one.tokenizer, b"text", "x")])[0].softmax(-1)
    (choice,) = Viewer([one]).view(Typed("text")).parts[0].choices
    assert [name for name, _ in choice.options] == ["the text"]
    shown = rows(tables(Viewer([one]), Typed("text"), "tokens")[0])
    assert {row[0]: row[1] for row in shown} == {
        name: f"{value:.2%}" for name, value in zip(one.outcomes, probabilities.tolist(), strict=True)
    }


def test_models_that_read_other_things_share_no_page() -> None:
    with pytest.raises(UsageError, match="small has a tokenizer and smht-mini, random weights has none"):
        Viewer([preset_subject(), subject()])
    with pytest.raises(UsageError, match="translator has a second stack and small has none"):
        Viewer([translator(), subject()])


def test_a_run_that_is_deleted_or_changes_while_it_is_looked_at(tmp_path: Path) -> None:
    run = write_finished_run(tmp_path)
    one = run_subject(run.path)
    viewer = Viewer([one])
    assert "there" not in viewer.view(Typed("a")).status
    weights = run.path / "model.safetensors"
    before = viewer.view(Typed("a")).parts
    weights.touch()
    assert "has other weights now: start the explorer anew" in viewer.view(Typed("a")).status
    shutil.rmtree(run.path)
    view = viewer.view(Typed("a"))
    assert view.status.count("is no longer there: this is the model as it was read from it") == 1
    assert view.parts == before


def test_a_run_opens_on_a_text_of_its_task(tmp_path: Path) -> None:
    run = write_finished_run(tmp_path)
    record = json.loads(run.record_path.read_text())
    run.record_path.write_text(json.dumps({**record, "task": "translation"}))
    assert run_subject(run.path).first_text == "satu"


def test_it_opens_on_as_much_as_all_can_read() -> None:
    short = subject(max_position_embeddings=5)
    short.first_text = "for i in range(3):"
    assert Viewer([short, subject()]).first_text == "for "
    with pytest.raises(UsageError, match="reads at most 1: take 1 away"):
        _ = Viewer([subject(max_position_embeddings=1)]).first_text


def test_a_preset_is_the_same_model_each_time() -> None:
    first, second = (preset_subject().model.state_dict() for _ in range(2))
    assert all(torch.equal(first[name], second[name]) for name in first)
    assert replace(Typed("a"), changes=HeadChanges(("x",))) != Typed("a")


_SMALL: Subject = subject()
