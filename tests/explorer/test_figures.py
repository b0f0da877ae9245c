import base64
import io
import re

import torch
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from helpers.pages import parse_page
from smht.explorer.bars import Bar, bar_table
from smht.explorer.colours import WEIGHTS, Scale, scale_of
from smht.explorer.heat_maps import Axis, averaged, heat_map, number, thumbnail

NASTY = "<script>alert('1')</script>&\"${x}{{y}}"


def pixels(html: str) -> torch.Tensor:
    """Colour and opacity of a figure's picture, `[R, C, 4]`."""
    match = re.search(r"data:image/png;base64,([A-Za-z0-9+/=]+)", html)
    assert match is not None
    image = Image.open(io.BytesIO(base64.b64decode(match[1]))).convert("RGBA")
    return torch.frombuffer(bytearray(image.tobytes()), dtype=torch.uint8).view(image.height, image.width, 4).int()


def test_a_small_matrix_is_a_table_with_every_number() -> None:
    values = torch.tensor([[0.5, -1.25], [0.0, 2.0]])
    html = heat_map(values, Axis("token", ["a", NASTY]), Axis("head", group=1), NASTY)
    page = parse_page(html)
    assert [cell.text for cell in page.all("td")] == ["", "0.5000", "−1.2500", "0.0000", "2.0000"]
    assert [cell.text for cell in page.all("th")] == ["head 0", "head 1", "token", "0", "0", "a", NASTY]
    assert page.all("caption")[0].text == NASTY
    assert not page.all("script")
    styles = [cell.attributes.get("style", "") for cell in page.all("td")][1:]
    assert styles == [
        "background:rgb(0 114 178/14%)",
        "background:rgb(213 94 0/34%)",
        "",
        "background:rgb(0 114 178/55%)",
    ]


def test_whole_numbers_stay_whole_and_have_no_colour() -> None:
    page = parse_page(heat_map(torch.tensor([[17, 52]]), Axis("", ["id"]), Axis("token"), "ids"))
    assert [cell.text for cell in page.all("td")] == ["17", "52"]
    assert not any("style" in cell.attributes for cell in page.all("td"))


@given(st.integers(1, 300), st.integers(1, 300), st.sampled_from([0, 1, 5]), st.booleans())
def test_any_matrix_becomes_a_figure_of_bounded_size(rows: int, columns: int, group: int, has_names: bool) -> None:
    columns = columns * max(group, 1)
    values = torch.randn(rows, columns)
    names = [f"t{place}" for place in range(columns)] if has_names else []
    html = heat_map(values, Axis("token"), Axis("head", names, group), "title")
    page = parse_page(html)
    assert len(html) < 200_000
    if rows * columns > 400 or columns > 24:
        shown = pixels(html)
        assert max(shown.shape[:2]) <= 128
        (svg,) = page.all("svg")
        assert svg.attributes["role"] == "img"
        assert number(float(values.max())) in svg.attributes["aria-label"]


@given(st.integers(1, 40), st.integers(1, 40), st.integers(1, 12))
def test_averages_are_means_of_blocks(rows: int, columns: int, most: int) -> None:
    values = torch.randn(rows, columns)
    shown, (height, width) = averaged(values, most)
    assert max(shown.shape) <= most or most >= max(rows, columns)
    for row in range(shown.shape[0]):
        for column in range(shown.shape[1]):
            block = values[row * height : (row + 1) * height, column * width : (column + 1) * width]
            torch.testing.assert_close(shown[row, column], block.mean())


def test_a_picture_has_blue_above_and_orange_below_zero() -> None:
    values = torch.zeros(30, 30)
    values[0, 0], values[29, 1], values[3, 2] = 4.0, -4.0, 2.0
    shown = pixels(heat_map(values, Axis("token"), Axis("channel"), "title"))
    assert shown[0, 0].tolist() == [0, 114, 178, 255]
    assert shown[29, 1].tolist() == [213, 94, 0, 255]
    assert shown[3, 2].tolist() == [0, 114, 178, 128]
    assert shown[5, 5, 3] == 0


def test_weights_of_long_texts_are_coloured_row_by_row() -> None:
    weights = torch.full((100, 100), 0.01).tril()
    opacity = pixels(heat_map(weights, Axis("looking"), Axis("looked at"), "title", WEIGHTS))[..., 3]
    assert torch.equal(opacity, 255 * torch.ones(100, 100, dtype=torch.int32).tril())
    assert 'alt="head 3"' in thumbnail(weights, "head 3", WEIGHTS)


def test_values_that_are_no_numbers_are_drawn_as_nothing() -> None:
    values = torch.full((30, 30), float("nan"))
    values[0, 0] = 1.0
    assert scale_of(values) == Scale(1.0)
    assert pixels(heat_map(values, Axis("a"), Axis("b"), "title"))[1, 1, 3] == 0
    assert scale_of(torch.zeros(2, 2)) == Scale(1.0)


def test_numbers_are_written_alike() -> None:
    assert [number(value) for value in (0.0, -0.00001, -1.5, 1e6, -2e9, 3)] == [
        *("0.0000", "0.0000", "−1.5000", "1e+06", "−2e+09", "3")
    ]


def test_bars_start_from_a_common_zero() -> None:
    bars = [Bar("a", 3.0, ("3",)), Bar(NASTY, -1.0, ("-1",)), Bar("sum", 2.0, (NASTY,), is_total=True)]
    page = parse_page(bar_table("title", ("name", "value"), bars))
    spans = [(span.attributes["class"], span.attributes["style"]) for span in page.all("span")]
    assert spans == [("above", "margin-left:25.0%;width:75.0%"), ("below", "margin-left:0.0%;width:25.0%")]
    assert [row.all("th")[0].text for row in page.all("tr")][1:] == ["a", NASTY, "sum"]


def test_bars_of_nothing_and_of_zeros() -> None:
    assert parse_page(bar_table("title", ("name", "value"), [])).all("table")
    assert "width:0.0%" in bar_table("title", ("name", "value"), [Bar("a", 0.0, ("0",))])
