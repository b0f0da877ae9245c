import pytest
import torch
from playwright.sync_api import Browser, expect

from helpers.browser import fits, watched
from smht.explorer.subject import preset_subject
from smht.inspection import trace

pytestmark = pytest.mark.slow


def test_it_opens_on_the_article_and_follows_what_is_typed(chromium: Browser, mini: str) -> None:
    model = preset_subject().model
    with watched(chromium, mini) as seen:
        page = seen.page
        for ids in ([17, 52, 3, 88], [5, 99]):
            text = ", ".join(map(str, ids))
            if ids[0] != 17:
                page.get_by_role("textbox", name="Token ids").fill(text)
            expect(page.locator("#status")).to_contain_text(f"{len(ids)} of at most 16 tokens")
            probabilities = trace(model, input_ids=torch.tensor([ids])).outputs.logits[0, -1].softmax(-1)
            best = probabilities.topk(10)
            rows = page.locator("#tokens table").first.locator("tbody tr")
            expect(rows.locator("th")).to_have_text([str(index) for index in best.indices.tolist()])
            expect(rows.locator("td:nth-child(2)")).to_have_text([f"{value:.2%}" for value in best.values.tolist()])
        assert fits(page)
