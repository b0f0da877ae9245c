"""The page in a real browser: typed into, every control used, its numbers compared with the library's."""

import re
import shutil
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from playwright.sync_api import Browser, Locator, Page, expect

from helpers.browser import fits, watched
from helpers.runs import write_finished_run
from helpers.subjects import subject, translator
from smht.explorer.reading import Typed
from smht.explorer.server import Server
from smht.explorer.static_page import save_page
from smht.explorer.subject import PRESET_IDS, preset_subject, run_subject
from smht.explorer.viewer import Viewer
from smht.inspection import Drop, DropLineage, Freeze, Swap, ablate, head_logits, trace

pytestmark = pytest.mark.slow

SECONDS_TO_PAINT, SECONDS_TO_ANSWER = 3, 1
"""On two idle cores; a machine with other work on it gets five times as long."""
_SLOWER = 5


@pytest.fixture(scope="module")
def pair() -> Iterator[str]:
    """The address of a split and a dense model of bytes side by side."""
    server = Server(Viewer([subject("split one"), subject("dense <one>", split=())]), "ab")
    yield server.address
    server.close()


def type_ids(page: Page, text: str) -> None:
    page.get_by_role("textbox", name="Token ids").fill(text)


def choose(page: Page, label: str, option: str) -> None:
    """Pick from a list with the keyboard."""
    box = page.get_by_label(label, exact=True).and_(page.locator("input"))
    box.click()
    box.fill(option)
    box.press("Enter")
    expect(box).to_have_value(option)


def add(page: Page, label: str, option: str) -> None:
    """Pick one more from a list of which several can be chosen, with the keyboard."""
    box = page.get_by_label(label, exact=True).and_(page.locator("input"))
    box.focus()
    page.keyboard.type(option)
    page.keyboard.press("Enter")
    expect(page.locator(".token", has_text=option)).to_have_count(1)


def numbers(table: Locator) -> list[list[float]]:
    """A table's cells, without its first column and what is no number."""
    rows = table.evaluate(
        "table => [...table.tBodies[0].rows].map(r => [...r.cells].map(c => [c.tagName, c.innerText]))"
    )
    texts = [[text.replace("−", "-") for tag, text in row if tag == "TD"] for row in rows]
    return [[float(text) for text in row if re.fullmatch(r"-?[\d.]+", text)] for row in texts]


def close(shown: list[list[float]], expected: torch.Tensor) -> None:
    torch.testing.assert_close(torch.tensor(shown), expected.float(), atol=6e-5, rtol=0)


def test_it_opens_on_the_article_and_follows_what_is_typed(chromium: Browser, mini: str) -> None:
    model = preset_subject().model
    start = time.monotonic()
    with watched(chromium, mini, is_new=True) as seen:
        page = seen.page
        expect(page.locator("#tokens table").first).to_be_visible()
        assert time.monotonic() - start < SECONDS_TO_PAINT * _SLOWER
        for ids in ([17, 52, 3, 88], [5, 99]):
            if ids[0] != 17:
                start = time.monotonic()
                type_ids(page, ", ".join(map(str, ids)))
            expect(page.locator("#status")).to_contain_text(f"{len(ids)} of at most 16 tokens")
            assert time.monotonic() - start < SECONDS_TO_ANSWER * _SLOWER + SECONDS_TO_PAINT * _SLOWER
            probabilities = trace(model, input_ids=torch.tensor([ids])).outputs.logits[0, -1].softmax(-1)
            best = probabilities.topk(10)
            rows = page.locator("#tokens table").first.locator("tbody tr")
            expect(rows.locator("th")).to_have_text([str(index) for index in best.indices.tolist()])
            expect(rows.locator("td:nth-child(2)")).to_have_text([f"{value:.2%}" for value in best.values.tolist()])


def test_every_step_is_walked(chromium: Browser, mini: str) -> None:
    steps = trace(preset_subject().model, input_ids=torch.tensor([[17, 52, 3, 88]])).steps
    with watched(chromium, mini) as seen:
        page = seen.page
        for place, step in enumerate(steps):
            expect(page.locator("#steps caption").first).to_contain_text(f"{step.number} {step.name}")
            shape = f"({', '.join(map(str, step.shape))})"
            expect(page.locator("#steps .formula")).to_contain_text(f"{step.formula} → {shape}")
            if step.value.dim() == 4 and step.number not in ("3d",):
                close(numbers(page.locator("#steps table").first), step.value[0].flatten(1))
            if place + 1 < len(steps):
                page.get_by_role("button", name="Next step").click()
        page.get_by_role("button", name="Previous step").click()
        expect(page.locator("#steps .formula")).to_contain_text(steps[-2].formula)
        choose(page, "Step", "3g attention output, block 0")
        expect(page.locator("#steps .formula")).to_contain_text("A_h · W_O[h] → (1, 4, 8)")
        page.get_by_text("All steps with their shapes").click()
        expect(page.locator("#steps tr", has_text="3d attention weights")).to_contain_text("(1, 4, 4, 4)")


def test_attention_and_contributions_of_every_head(chromium: Browser, mini: str) -> None:
    model, ids = preset_subject().model, torch.tensor([[17, 52, 3, 88]])
    weights = trace(model, input_ids=ids).select("3d")[0].value[0]
    with watched(chromium, mini) as seen:
        page = seen.page
        for head in range(4):
            expect(page.locator("#attention table").first.locator("caption")).to_contain_text(f"head {head}")
            close(numbers(page.locator("#attention table").first), weights[head])
            page.get_by_role("button", name="Next head").click()
        page.get_by_role("button", name="Previous head").click()
        expect(page.locator("#attention table").first.locator("caption")).to_contain_text("head 2")
        choose(page, "Token that looks", "1: 52")
        expect(page.locator("#attention table").nth(1).locator("caption")).to_contain_text("token 1, “52”")
        choose(page, "Head", "1")
        choose(page, "Rows", "whole text")
        choose(page, "Block", "block 0")
        page.get_by_text("The heads of this block in numbers").click()

        choose(page, "After token", "2: 3")
        scores = model(input_ids=ids).logits[0, 2].topk(2).indices
        first, second = map(str, scores.tolist())
        choose(page, "Outcome", first)
        choose(page, "Against", second)
        split = head_logits(model, scores, input_ids=ids).between(0, 1)[0, 2]
        expect(page.locator("#contributions caption")).to_have_text(f"Score of “{first}” less that of “{second}”")
        shown = [row[0] for row in numbers(page.locator("#contributions table"))]
        assert shown == pytest.approx([*split.tolist(), float(split.sum())], abs=6e-5)


def test_heads_are_switched_off_and_on(chromium: Browser, mini: str) -> None:
    model, ids = preset_subject().model, torch.tensor([[17, 52, 3, 88]])
    with watched(chromium, mini) as seen:
        page, loss = seen.page, seen.page.locator("#tokens p", has_text="Loss")
        page.get_by_label("block 0 head 1", exact=True).check()
        result = ablate(model, [Drop(0, 1)], input_ids=ids)
        expect(loss).to_contain_text(f"{result.loss_after:.4f} nats a token over 3 tokens; unedited")
        page.get_by_label("held: of the unedited run").check()
        result = ablate(model, [Drop(0, 1)], "held", input_ids=ids)
        expect(loss).to_contain_text(f"{result.loss_after:.4f}")
        page.get_by_label("block 0 head 1", exact=True).uncheck()
        page.get_by_label("chunk 3 from end to end").check()
        result = ablate(model, [DropLineage(3)], "held", input_ids=ids)
        expect(loss).to_contain_text(f"{result.loss_after:.4f}")
        expect(page.locator("#contributions tbody tr").nth(3)).to_contain_text("0.0000")
        page.get_by_label("chunk 3 from end to end").uncheck()
        page.get_by_label("live: of the edited run").check()
        expect(loss).to_have_text(f"Loss: {result.loss_before:.4f} nats a token over 3 tokens.")


def test_heads_are_frozen_and_swapped_with_the_keyboard(chromium: Browser, mini: str) -> None:
    model, ids = preset_subject().model, torch.tensor([[17, 52, 3, 88]])
    with watched(chromium, mini) as seen:
        page, shown = seen.page, seen.page.locator("#tokens")

        def says(edits: list[Any], statistics: str) -> None:
            result = ablate(model, edits, statistics, input_ids=ids)
            expect(shown).to_contain_text(f"Loss: {result.loss_after:.4f} nats a token over 3 tokens; unedited")
            expect(shown).to_contain_text(f"{'; '.join(result.descriptions)}; norms' statistics {statistics} (of the")
            expect(page.locator("#status")).to_contain_text(f"LayerNorm's statistics {statistics}")

        add(page, "Heads frozen at their mean over the text", "block 0 head 2")
        says([Freeze(0, 2)], "live")
        add(page, "Heads that change places, two by two", "block 0 head 0")
        expect(page.locator("#status")).to_contain_text("Block 0 head 0 is to change places")
        add(page, "Heads that change places, two by two", "block 0 head 3")
        says([Freeze(0, 2), Swap(0, 0, 3)], "live")
        page.get_by_label("held: of the unedited run").press("Space")
        says([Freeze(0, 2), Swap(0, 0, 3)], "held")
        page.get_by_label("their weights").press("Space")
        says([Freeze(0, 2), Swap(0, 0, 3, what="weights")], "held")
        page.get_by_label("block 0 head 2", exact=True).press("Space")
        expect(page.locator("#status")).to_contain_text("Layer 0 head 2 is edited twice (attention)")
        expect(page.locator("#tokens table")).to_have_count(0)
        page.get_by_label("Heads frozen at their mean over the text").press("Backspace")
        says([Drop(0, 2), Swap(0, 0, 3, what="weights")], "held")


def test_a_page_of_many_heads(chromium: Browser) -> None:
    many = subject(hidden_size=24, num_hidden_layers=12, num_attention_heads=12)
    server = Server(Viewer([many]), "ab")
    with watched(chromium, server.address) as seen:
        page = seen.page
        add(page, "Heads that are off", "block 11 head 7")
        expect(page.locator("#tokens")).to_contain_text("Edits: drop layer 11 head 7;")
        choose(page, "Block", "block 11")
        expect(page.locator("#attention .thumbnails figure, #attention .thumbnails svg")).not_to_have_count(0)
    server.close()


def test_generation_token_by_token(chromium: Browser, mini: str) -> None:
    model = preset_subject().model
    ids = [17, 52, 3, 88]
    for _ in range(4):
        ids.append(int(model(input_ids=torch.tensor([ids])).logits[0, -1].argmax()))
    with watched(chromium, mini) as seen:
        page, added = seen.page, seen.page.locator("#generation li bdi")
        page.get_by_label("number input for Temperature").fill("0")
        page.get_by_label("Top-k, 0 for all").fill("5")
        page.get_by_label("number input for Tokens to add").fill("3")
        page.get_by_label("Seed").fill("1")
        page.get_by_role("button", name="One token").click()
        expect(added).to_have_text([str(ids[4])])
        page.get_by_role("button", name="Several tokens").click()
        expect(added).to_have_text([str(index) for index in ids[4:]])
        page.get_by_role("button", name="Take over as text").click()
        expect(page.get_by_role("textbox", name="Token ids")).to_have_value(", ".join(map(str, ids)))
        expect(page.locator("#status")).to_contain_text("8 of at most 16 tokens")
        page.get_by_role("button", name="Start over").click()
        expect(page.locator("#generation")).to_contain_text("Nothing added yet.")
        page.get_by_label("number input for Tokens to add").fill("256")
        page.get_by_role("button", name="Several tokens").click()
        expect(added.first).to_be_visible()
        page.get_by_role("button", name="Stop").click()
        page.wait_for_timeout(500)
        count = added.count()
        page.wait_for_timeout(500)
        assert added.count() == count


def test_what_cannot_be_read_is_said_once_and_mended(chromium: Browser, mini: str) -> None:
    with watched(chromium, mini) as seen:
        page = seen.page
        for text, says in (
            ("", "There is nothing to read: type token ids"),
            ("100", "Token id 100 is outside the vocabulary of 100 tokens."),
            (", ".join(["1"] * 17), "reads at most 16: take 1 away."),
            ("<b>1</b>", "'<b>1</b>' is no list of token ids"),
        ):
            type_ids(page, text)
            expect(page.locator("#status p")).to_have_count(1)
            expect(page.locator("#status p")).to_contain_text(says)
            expect(page.locator("#tokens table")).to_have_count(0)
        page.get_by_role("button", name="One token").click()
        expect(page.locator("#generation")).to_contain_text("is no list of token ids")
        type_ids(page, "5, 99")
        expect(page.locator("#tokens table").first).to_be_visible()
        page.get_by_label("Top-k, 0 for all").fill("-1")
        page.get_by_role("button", name="One token").click()
        expect(page.locator("#generation")).to_contain_text("Top_k = -1 must be at least 1.")


def test_fast_typing_ends_with_the_last_text(chromium: Browser, mini: str) -> None:
    with watched(chromium, mini) as seen:
        page, box = seen.page, seen.page.get_by_role("textbox", name="Token ids")
        box.fill("")
        box.press_sequentially("1, 2, 3, 4, 5")
        expect(page.locator("#status")).to_contain_text("5 of at most 16 tokens")
        for _ in range(9):
            box.press("Backspace")
        expect(page.locator("#status")).to_contain_text("2 of at most 16 tokens")
        expect(page.locator("#tokens .tokens li")).to_have_count(2)
        assert page.get_by_test_id("toast-body").count() == 0


def test_two_browsers_at_once(chromium: Browser, mini: str) -> None:
    with watched(chromium, mini) as one, watched(chromium, mini, is_new=True) as other:
        type_ids(one.page, "1, 2, 3")
        type_ids(other.page, "4, 5")
        for page, count in ((one.page, 3), (other.page, 2)):
            page.get_by_role("button", name="One token").click()
            expect(page.locator("#status")).to_contain_text(f"{count} of at most 16 tokens")
            expect(page.locator("#tokens .tokens li")).to_have_count(count)
            expect(page.locator("#generation li")).to_have_count(1)
        one.page.get_by_label("block 0 head 1", exact=True).check()
        expect(one.page.locator("#tokens")).to_contain_text("Edits: drop layer 0 head 1;")
        type_ids(other.page, "4, 5, 6")
        expect(other.page.locator("#tokens .tokens li")).to_have_count(3)
        expect(other.page.locator("#tokens")).not_to_contain_text("Edits")


def test_any_text_is_shown_as_text_by_both_models(chromium: Browser, pair: str) -> None:
    with watched(chromium, pair) as seen:
        page, box = seen.page, seen.page.get_by_role("textbox", name="Text")
        for text in ("<img src=x onerror=alert(1)>", "😀 שלום", "${1}{{x}}", "a\nb\tc"):
            box.fill(text)
            expect(page.locator("#status")).to_contain_text(f"{len(text.encode()) + 1} of at most 32 tokens")
            for name in ("split one", "dense <one>"):
                article = page.locator("#tokens").get_by_role("article", name=name)
                expect(article.locator("ol.tokens li")).to_have_count(len(text.encode()) + 1)
            assert page.locator("#tokens img").count() == 0
            expect(page.locator("#contributions")).to_contain_text("the dense projections")
        for text, says in (("", "The text is empty: type something."), ("x" * 32, "reads at most 32: take 1 away.")):
            box.fill(text)
            expect(page.locator("#status p")).to_contain_text(says)
            expect(page.locator("#tokens table")).to_have_count(0)


def test_a_translator_reads_and_writes(chromium: Browser) -> None:
    one = translator()
    server = Server(Viewer([one]), "abc")
    try:
        with watched(chromium, server.address) as seen:
            page = seen.page
            page.get_by_role("textbox", name="Written so far").fill("xy")
            expect(page.get_by_label("Tokens read").locator("li bdi")).to_have_text(["a", "b", "c", "<eos>"])
            expect(page.get_by_label("Tokens with probabilities").locator("li bdi")).to_have_text(["<bos>", "x", "y"])
    finally:
        server.close()


def test_the_run_is_deleted_while_the_page_is_open(chromium: Browser, tmp_path: Path) -> None:
    run = write_finished_run(tmp_path)
    server = Server(Viewer([run_subject(run.path)]), "ab")
    try:
        with watched(chromium, server.address) as seen:
            page = seen.page
            expect(page.locator("#status .notice")).to_have_count(0)
            shutil.rmtree(run.path)
            page.get_by_role("textbox", name="Text").fill("abc")
            expect(page.locator("#status .notice")).to_have_count(1)
            expect(page.locator("#status .notice")).to_contain_text("is no longer there")
            expect(page.locator("#tokens ol.tokens li")).to_have_count(4)
    finally:
        server.close()


def test_the_page_fits_a_telephone_and_every_control_has_a_name(chromium: Browser, mini: str, pair: str) -> None:
    for address in (mini, pair):
        with watched(chromium, address, width=375) as seen:
            page = seen.page
            expect(page.locator("#contributions table").first).to_be_visible()
            page.get_by_label("block 0 head 1", exact=True).check()
            expect(page.locator("#tokens")).to_contain_text("Edits: drop layer 0 head 1")
            page.evaluate("document.querySelectorAll('details').forEach(each => each.open = true)")
            assert fits(page)
            bars = page.locator(".scroll:has(.bars)")
            assert bars.count() > 2
            assert bars.evaluate_all("all => all.every(each => each.scrollWidth <= each.clientWidth)")
            controls = page.locator("input:visible, textarea:visible, button:visible, [role=region]")
            assert controls.count() > 20
            nameless = f"elements => elements.filter(each => !({_NAME})(each)).map(each => each.outerHTML)"
            assert controls.evaluate_all(nameless) == []


def test_the_keyboard_reaches_every_control(chromium: Browser, mini: str) -> None:
    with watched(chromium, mini) as seen:
        page = seen.page
        expect(page.locator("#contributions table").first).to_be_visible()
        page.get_by_role("textbox", name="Token ids").focus()
        wanted = {"block 0 head 0", "frozen at", "change places", "where they write", "Step", "Next step", "Next head"}
        wanted |= {"Outcome", "Seed", "One token", "Stop"}
        for _ in range(80):
            page.keyboard.press("Tab")
            name = page.evaluate(f"({_NAME})(document.activeElement)")
            wanted -= {each for each in wanted if each in name}
            if not wanted:
                break
        assert not wanted


def test_the_page_in_a_file(chromium: Browser, tmp_path: Path) -> None:
    save_page(Viewer([preset_subject()]), Typed(PRESET_IDS), tmp_path / "page.html")
    for width in (1280, 375):
        with watched(chromium, (tmp_path / "page.html").as_uri(), width=width) as seen:
            page = seen.page
            page.evaluate("document.querySelectorAll('details').forEach(each => each.open = true)")
            assert fits(page)
            assert page.locator("details").count() > 20
            for title in ("Tokens and probabilities", "Contributions of the chunks"):
                page.get_by_role("link", name=title).click()
                expect(page.get_by_role("heading", name=title)).to_be_in_viewport()


def test_the_server_asks_nothing_of_other_machines(chromium: Browser) -> None:
    asked: set[str] = set()
    is_listening = True

    def listen(event: str, arguments: tuple[Any, ...]) -> None:
        if is_listening and event in ("socket.connect", "socket.getaddrinfo"):
            address = arguments[1] if event == "socket.connect" else arguments[0]
            asked.add(str(address[0] if isinstance(address, tuple) else address))

    sys.addaudithook(listen)  # can never be removed again
    server = Server(Viewer([preset_subject()]))
    try:
        with watched(chromium, server.address) as seen:
            expect(seen.page.locator("#contributions table")).to_be_visible()
    finally:
        server.close()
        is_listening = False
    assert asked <= {"127.0.0.1"}, asked


_NAME = """element => {
  const labels = element.labels ? [...element.labels].map(each => each.innerText) : [];
  return [element.getAttribute('aria-label') || '', element.innerText || '', ...labels].join(' ').trim();
}"""
