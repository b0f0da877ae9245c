"""Heads off, frozen and swapped on the page: its numbers are those of `ablate`, and it says what was done."""

from html import unescape
from typing import Any

import pytest

from helpers.pages import Element, parse_page
from helpers.subjects import classifier, subject, translator
from smht.explorer.head_changes import NO_CHANGES, HeadChanges
from smht.explorer.reading import Reader, Typed
from smht.explorer.subject import PRESET_IDS, preset_subject
from smht.explorer.viewer import View, Viewer
from smht.inspection import Drop, DropLineage, Freeze, Swap, ablate
from smht.inspection.head_edits import HeadEdit

TEXT = "some text"
ONE, TWO, THREE, OTHER = "block 0 head 0", "block 0 head 1", "block 0 head 2", "block 1 head 2"
EVERY_KIND: list[tuple[HeadChanges, list[HeadEdit], tuple[str, ...]]] = [
    (HeadChanges((OTHER, ONE)), [Drop(0, 0), Drop(1, 2)], ("2 off", "drop layer 0 head 0; drop layer 1 head 2")),
    (HeadChanges(("chunk 1 from end to end", TWO)), [DropLineage(1)], ("1 off", "drop chunk 1 from embedding")),
    (HeadChanges(frozen=(OTHER,)), [Freeze(1, 2)], ("1 frozen", "freeze layer 1 head 2 at its mean")),
    (HeadChanges(swapped=(ONE, THREE)), [Swap(0, 0, 2)], ("1 swapped", "swap outputs of layer 0 head 0 and head 2")),
    (
        HeadChanges(swapped=(ONE, OTHER, TWO, THREE), what="weights"),
        [Swap(0, 0, 2, 1, what="weights"), Swap(0, 1, 2, what="weights")],
        ("2 swapped", "swap weights of layer 0 head 0 and layer 1 head 2"),
    ),
    (
        HeadChanges((ONE,), (OTHER,), (TWO, THREE)),
        [Drop(0, 0), Freeze(1, 2), Swap(0, 1, 2)],
        ("1 off, 1 frozen, 1 swapped",),
    ),
]


def with_statistics(changes: HeadChanges, statistics: str) -> HeadChanges:
    return HeadChanges(changes.off, changes.frozen, changes.swapped, changes.what, statistics)


def rows(html: str, table: int = 0) -> list[list[str]]:
    (body,) = parse_page(html).all("table")[table].all("tbody")
    return [[cell.text for cell in row.inside] for row in body.all("tr")]


def value(cell: str) -> float:
    return float(cell.replace("−", "-"))


@pytest.mark.parametrize("statistics", ["live", "held"])
@pytest.mark.parametrize(("changes", "edits", "says"), EVERY_KIND)
def test_loss_probabilities_and_scores_are_the_librarys(
    changes: HeadChanges, edits: list[HeadEdit], says: tuple[str, ...], statistics: str
) -> None:
    one = subject()
    result = ablate(one.model, edits, statistics, **one.inputs(TEXT))
    view = Viewer([one]).view(Typed(TEXT, changes=with_statistics(changes, statistics)))
    assert says[0] in view.status and f"LayerNorm&#x27;s statistics {statistics}" in view.status
    shown = unescape(view.parts[0].html)
    for said in (
        f"Loss: {result.loss_after:.4f} nats a token",
        f"unedited {result.loss_before:.4f}",
        f"norms' statistics {statistics} (of the {'edited' if statistics == 'live' else 'unedited'} run)",
        *says[1:],
    ):
        assert said in shown
    best = result.logits_after[0, -1].softmax(-1).topk(10)
    before = result.logits_before[0, -1].softmax(-1)
    table = rows(view.parts[0].html)
    assert [row[1] for row in table] == [f"{value:.2%}" for value in best.values.tolist()]
    assert [row[2] for row in table] == [f"{float(before[index]):.2%}" for index in best.indices.tolist()]
    assert value(rows(view.parts[3].html)[-1][1]) == pytest.approx(float(result.logits_after[0, -1].max()), abs=6e-5)


@pytest.mark.parametrize("statistics", ["live", "held"])
def test_heads_of_two_stacks(statistics: str) -> None:
    one = translator()
    changes = HeadChanges(
        ("encoder block 0 head 1",), ("decoder block 1 head 0",), ("decoder block 0 head 1", "decoder block 0 head 2")
    )
    edits = [Drop(0, 1, "encoder"), Freeze(1, 0, "decoder"), Swap(0, 1, 2, stack="decoder")]
    result = ablate(one.model, edits, statistics, **one.inputs("abc", "xyz"))
    view = Viewer([one]).view(Typed("abc", "xyz", with_statistics(changes, statistics)))
    assert f"Loss: {result.loss_after:.4f} nats a token" in view.parts[0].html
    swap = HeadChanges(swapped=("encoder block 0 head 1", "decoder block 0 head 1"))
    assert "are of two stacks, which do not fit each other" in Viewer([one]).view(Typed("a", "x", swap)).status


def test_labels_of_a_classifier() -> None:
    one = classifier()
    edits = [Freeze(0, 1), Swap(1, 0, 2, what="weights")]
    result = ablate(one.model, edits, "held", **one.inputs("a film"))
    changes = HeadChanges((), (TWO,), ("block 1 head 0", OTHER), "weights", "held")
    html = Viewer([one]).view(Typed("a film", changes=changes)).parts[0].html
    after, before = (logits[0].softmax(-1) for logits in (result.logits_after, result.logits_before))
    assert {name: (new, old) for name, new, old, _ in rows(html)} == {
        name: (f"{float(after[number]):.2%}", f"{float(before[number]):.2%}")
        for number, name in enumerate(one.outcomes)
    }
    assert "freeze layer 0 head 1 at its mean" in html


def test_a_chunk_is_off_from_end_to_end_where_it_has_a_lineage() -> None:
    html = Viewer([subject()]).view(Typed("text", changes=HeadChanges(("chunk 1 from end to end", TWO)))).parts[3].html
    assert rows(html)[1][1] == "0.0000"
    assert not any("chunk" in name for name in subject(split=()).heads)


def test_swapped_heads_end_the_lineage_of_chunks() -> None:
    notes = [
        parse_page(Viewer([subject()]).view(Typed(TEXT, changes=changes)).parts[3].html).all("p")[0].text
        for changes in (
            HeadChanges((ONE,)),
            HeadChanges(swapped=(ONE, TWO), what="weights"),
            HeadChanges(swapped=(ONE, TWO)),
        )
    ]
    assert notes[0] == notes[1] and notes[0].startswith("Each chunk comes from its own chunk of the embeddings")
    assert notes[2] == "Chunks are of the last hidden state only: heads 0 and 1 write in each other's chunks."


def test_a_head_without_a_second_one_waits() -> None:
    view = Viewer([subject()]).view(Typed(TEXT, changes=HeadChanges(swapped=(TWO,))))
    assert "Block 0 head 1 is to change places: choose the head to swap it with." in view.status
    assert view.parts == Viewer([subject()]).view(Typed(TEXT)).parts
    view = Viewer([subject()]).view(Typed(TEXT, changes=HeadChanges(swapped=(ONE, THREE, TWO))))
    assert "1 swapped" in view.status and "Block 0 head 1 is to change places" in view.status


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        (HeadChanges((ONE,), (ONE,)), "Layer 0 head 0 is edited twice (attention): name each head in one edit."),
        (HeadChanges(("chunk 2 from end to end",), (THREE,)), "Layer 0 head 2 is edited twice"),
        (HeadChanges(swapped=(ONE, OTHER)), "Outputs of layers 0 and 1 cannot change places"),
    ],
)
def test_changes_that_do_not_fit_each_other_are_one_message(changes: HeadChanges, says: str) -> None:
    view: View = Viewer([subject()]).view(Typed(TEXT, changes=changes))
    assert says in view.status and view.status.count("<p") == 1
    assert not any(part.html for part in view.parts)


@pytest.mark.parametrize(
    "given", [{"off": ("block 7 head 0",)}, {"frozen": ("block 7 head 0",)}, {"swapped": (ONE, "block 7 head 0")}]
)
def test_names_of_heads_that_a_model_lacks_do_nothing(given: dict[str, Any]) -> None:
    one = Reader().read(preset_subject(), Typed(PRESET_IDS, changes=HeadChanges(**given, statistics="held")))
    assert one.whole is None and one.edits == () and one.statistics == "live"


def test_each_model_of_a_page_is_edited_where_it_has_the_head() -> None:
    deep, shallow = subject("deep"), subject("shallow", num_hidden_layers=1)
    html = Viewer([deep, shallow]).view(Typed(TEXT, changes=HeadChanges(frozen=(OTHER,)))).parts[0].html
    first, second = parse_page(html).all("article")
    assert "freeze layer 1 head 2" in first.text and "unedited" in first.text
    assert _loss(second) == _loss(parse_page(Viewer([shallow]).view(Typed(TEXT)).parts[0].html))


def test_equal_changes_are_read_once() -> None:
    reader, one = Reader(), subject()
    reading = reader.read(one, Typed(TEXT, changes=HeadChanges((ONE, TWO))))
    assert reader.read(one, Typed(TEXT, changes=HeadChanges((TWO, ONE)))) is reading
    assert reader.read(one, Typed(TEXT, changes=HeadChanges((TWO, ONE), statistics="held"))) is not reading
    assert reader.read(one, Typed(TEXT, changes=NO_CHANGES)) is reading.whole


def _loss(page: Element) -> str:
    return next(each.text for each in page.all("p") if each.text.startswith("Loss"))
