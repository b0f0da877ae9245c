"""Results as tables: in a terminal, and in a notebook."""

from html.parser import HTMLParser
from typing import Any

import pytest
import torch

from helpers.hugging_face import random_tokens, tiny_model
from smht.inspection import account, compare, coupling, head_logits, trace
from smht.inspection.attention_figures import draw_map
from smht.inspection.attention_maps import attention_maps
from smht.inspection.display import Displayed, Table
from smht.models import preset_config


class Cells(HTMLParser):
    """The text of each cell of a page's tables, and its pictures' descriptions."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.cells: list[str] = []
        self.pictures: list[str] = []
        self.open: list[str] = []
        self.feed(page)
        assert not self.open

    def handle_starttag(self, tag: str, attrs: Any) -> None:
        if tag == "img":
            self.pictures.append(dict(attrs)["alt"])
            assert dict(attrs)["src"].startswith("data:image/png;base64,iVBOR")
            return
        self.open.append(tag)
        if tag in ("td", "th"):
            self.cells.append("")

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if self.open[-1] in ("td", "th"):
            self.cells[-1] += data


MODEL = tiny_model("split", num_hidden_layers=2)
IDS = random_tokens(1)
RESULTS: dict[str, Displayed] = {
    "trace": trace(MODEL, input_ids=IDS),
    "head_logits": head_logits(MODEL, input_ids=IDS),
    "some tokens": head_logits(MODEL, torch.tensor([5, 30]), input_ids=IDS),
    "coupling": coupling(MODEL, IDS),
    "account": account(preset_config("smht-mini")),
    "compare": compare(preset_config("smht-mini")),
    "attention_maps": attention_maps(MODEL, input_ids=IDS),
}


@pytest.mark.parametrize("name", RESULTS)
def test_text_and_page_have_the_same_cells(name: str) -> None:
    result = RESULTS[name]
    text = repr(result)
    assert str(result) == text
    assert max(map(len, text.splitlines())) <= 120
    expected = [cell for table in result.tables() for row in (table.headers, *table.rows) for cell in row]
    assert Cells(result._repr_html_()).cells == expected
    for cell in expected:
        assert cell in text


def test_numbers_are_those_of_the_results() -> None:
    some = RESULTS["some tokens"].tables()[0]
    assert {row[0] for row in some.rows} == {"5", "30"}
    assert sum(float(value) for value in some.rows[0][1:-1]) == pytest.approx(float(some.rows[0][-1]), abs=1e-3)
    assert RESULTS["account"].tables()[0].rows[-1][2] == "1,904"
    assert RESULTS["compare"].tables()[0].rows[-1] == ("total", "2,288", "1,904", "83.2%")
    held = RESULTS["coupling"].tables()[1]
    assert [row[1 + place] for place, row in enumerate(held.rows)].count("0.0000") == 0
    assert {cell for i, row in enumerate(held.rows) for j, cell in enumerate(row[1:]) if i != j} == {"0.0000"}


def test_nothing_in_a_cell_is_markup() -> None:
    table = Table(("[b]", "<i>"), (("<script>", "\x1b[red]"),), "a & b", "<u>")
    page = table._repr_html_()
    assert "<script>" not in page and "<u>" not in page and "a &amp; b" in page
    assert "[b]" in str(table) and "<script>" in str(table)


def test_maps_and_figures_are_pictures_in_a_notebook() -> None:
    pytest.importorskip("matplotlib")
    page = RESULTS["attention_maps"]._repr_html_()
    assert Cells(page).pictures == ["self attention of every layer and head"]
    figure = draw_map(torch.eye(3), ["a", "b", "\U0001f600"], ["a", "b", "c"], "one")
    assert figure._repr_png_().startswith(b"\x89PNG")
