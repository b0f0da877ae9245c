from pathlib import Path

import pytest
import torch

from helpers.errors import refused
from smht.inspection.attention_figures import draw_grid, draw_map, save_figure

pytest.importorskip("matplotlib")


@pytest.mark.parametrize("tokens", [1, 2, 40, 512])
def test_a_map_of_any_length(tokens: int, tmp_path: Path) -> None:
    weights = torch.rand(tokens, tokens)
    names = [f"t{i}" for i in range(tokens)]
    figure = draw_map(weights, names, names, "a head")
    save_figure(figure, tmp_path / "map.png")
    assert (tmp_path / "map.png").read_bytes().startswith(b"\x89PNG")
    panel = figure.axes[0]
    shown = panel.images[0].get_array()
    assert max(shown.shape) <= 128
    assert ("means of 4 × 4 tokens" in panel.get_title()) == (tokens == 512)
    labels = [label.get_text() for label in panel.get_yticklabels()]
    assert len(labels) <= 64
    assert labels[-1] == {1: "t0", 2: "t1", 40: "t39", 512: "504"}[tokens]
    assert shown.mean() == pytest.approx(float(weights.mean()), abs=1e-4)


def test_labels_show_white_space_and_no_formulas(tmp_path: Path) -> None:
    names = ["a\n", " b", "$x$", "\t", "a very long token", "\U0001f600", "مرحبا", "<b>"]
    figure = draw_map(torch.eye(8), names, names, "$title")
    labels = [label.get_text() for label in figure.axes[0].get_yticklabels()]
    assert labels[:5] == ["a⏎", "␣b", r"\$x\$", "⇥", "a␣very␣long…"]
    save_figure(figure, tmp_path / "map.svg")
    save_figure(figure, tmp_path / "map.png")
    assert "<b>" not in (tmp_path / "map.svg").read_text()


def test_a_grid_has_every_head(tmp_path: Path) -> None:
    figure = draw_grid(torch.rand(3, 5, 20, 30), "all heads")
    assert len(figure.axes) == 15 + 1  # and the scale, which is the same in all
    assert {axis.images[0].get_clim() for axis in figure.axes[:15]} == {(0, 1)}
    save_figure(figure, tmp_path / "grid.svg")
    assert (tmp_path / "grid.svg").read_text().startswith("<?xml")


def test_where_pictures_cannot_go(tmp_path: Path) -> None:
    figure = draw_grid(torch.rand(1, 1, 2, 2), "one")
    with refused("name a .png, .svg or .pdf file"):
        save_figure(figure, tmp_path / "map.txt")
    with refused("there is no folder"):
        save_figure(figure, tmp_path / "nowhere" / "map.png")
