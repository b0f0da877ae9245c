from pathlib import Path

import pytest

from helpers.made_up_comparisons import FakeComparison
from helpers.pages import Element, addresses, parse_page
from smht.comparison.report import summarise
from smht.comparison.report.document import Bullets, Cell, Code, Document, Findings, Paragraph, Section, Table
from smht.comparison.report.markdown import write_markdown
from smht.comparison.report.page import write_page
from smht.comparison.report.sections import compose

pytest.importorskip("scipy")
pytest.importorskip("matplotlib")

EVIL = "<script>alert('1')</script>&amp;|`*_x_*`[a](b) \"$y$\""


@pytest.fixture(scope="module")
def document(tmp_path_factory: pytest.TempPathFactory) -> Document:
    comparison = FakeComparison(("dense", "split+shuffle", EVIL), changes={"command": f"smht compare '{EVIL}'"})
    rows = [*comparison.searches(), *comparison.finals()]
    rows[-1] |= {"status": "failed", "validation_loss": None, "error": EVIL}
    return compose(summarise(comparison.write(tmp_path_factory.mktemp("evil"), rows)))


@pytest.fixture(scope="module")
def page(document: Document) -> Element:
    return parse_page(write_page(document))


def test_the_page_asks_for_nothing(page: Element) -> None:
    assert addresses(page) == {"data:,"}
    assert page.all("script") == []


def test_the_page_names_no_address_at_all(document: Document) -> None:
    assert "://" not in write_page(document)


def test_what_asks_for_something_would_be_noticed() -> None:
    asked = {"x.png", "url(y)", "//z", "@import w"}
    markup = "<img src='x.png'><p style='background: url(y)'></p><a href='//z'></a><style>@import w;</style>"
    assert addresses(parse_page(markup)) == asked


def test_names_and_errors_are_text(page: Element) -> None:
    names = [row.all("th")[0].text for row in page.all("tbody")[0].all("tr")]
    assert names == ["dense", "split+shuffle", EVIL]
    [failures] = [table for table in page.all("table") if "Trials without a result" in table.text]
    assert failures.all("td")[-1].text == EVIL
    assert [code.text for code in page.all("code")] == [f"smht compare '{EVIL}'"]


def test_every_picture_says_what_it_shows(page: Element) -> None:
    pictures = [svg for svg in page.all("svg") if svg.attributes.get("role") == "img"]
    assert len(pictures) == len(page.all("figure")) > 4
    for svg in pictures:
        assert svg.all("title")[0].text and svg.all("desc")[0].text
        assert "viewbox" in svg.attributes and "width" not in svg.attributes
    decorations = [svg for svg in page.all("svg") if svg not in pictures]
    assert decorations and all(svg.attributes["aria-hidden"] == "true" for svg in decorations)


def test_pictures_follow_the_theme(page: Element, document: Document) -> None:
    style = page.all("style")[0].text
    assert "prefers-color-scheme: dark" in style
    text = write_page(document)
    body = text[text.index("<main>") :]
    for colour in ("#0072b2", "#d55e00", "#1f2429", "#ffffff"):
        assert colour in style
        assert colour not in body
    assert "var(--series-0)" in body and "var(--ink)" in body


def test_wide_tables_scroll_and_have_names(page: Element) -> None:
    regions = [box for box in page.all("div") if box.attributes.get("class") == "scroll"]
    assert len(regions) == len(page.all("table"))
    for region in regions:
        assert region.attributes["tabindex"] == "0"
        assert region.attributes["aria-label"] == region.all("caption")[0].text
        assert {cell.attributes["scope"] for cell in region.all("th")} == {"col", "row"}


def test_rows_are_as_long_as_their_headers(page: Element) -> None:
    for table in page.all("table"):
        head, *rows = table.all("tr")
        for row in rows:
            assert len(row.inside) == len(head.inside)


def test_a_telephone_gets_the_page_in_its_width(page: Element) -> None:
    metas = [meta.attributes for meta in page.all("meta")]
    assert {"name": "viewport", "content": "width=device-width, initial-scale=1"} in metas
    assert page.all("html")[0].attributes["lang"] == "en"


EVERYTHING = Document(
    "A title *with* stars",
    "lead",
    (
        Section(
            "First",
            (
                Findings((Cell("told", True), Cell("not told"))),
                Bullets(("# no heading", "- no list", "a | b")),
                Paragraph("two\nlines <b> and `code`"),
                Code("fence ``` inside"),
                Table("T", ("a|b", "c"), [("x", Cell("1", True)), ("_y_ snake_case", "")], note="n"),
            ),
        ),
    ),
)


def test_markdown_is_what_github_shows_as_meant() -> None:
    assert write_markdown(EVERYTHING) == (
        "# A title \\*with\\* stars\n\nlead\n\n## First\n\n- told\n- not told\n\n"
        "- \\# no heading\n- \\- no list\n- a \\| b\n\ntwo lines \\<b\\> and \\`code\\`\n\n"
        "````\nfence ``` inside\n````\n\n"
        "**T**\n\n| a\\|b | c |\n| :-- | --: |\n| x | **1** |\n| \\_y\\_ snake_case |  |\n\nn\n"
    )


def test_findings_that_tell_nothing_stand_back() -> None:
    points = parse_page(write_page(EVERYTHING)).all("ul")[0].all("li")
    assert [(point.text, point.attributes) for point in points] == [("told", {}), ("not told", {"class": "untold"})]


def test_markdown_escapes_names(document: Document, tmp_path: Path) -> None:
    text = write_markdown(document)
    outside = text[: text.index("```")]
    assert "<script>" not in outside.replace("\\<", "")
    for line in outside.splitlines():
        if line.startswith("|"):
            cells = line.replace("\\|", "").count("|") - 1
            assert cells > 1
