import sys
from pathlib import Path

import pytest
import torch

from smht.models import SmhtConfig, SmhtForSequenceClassification
from smht.tasks import TASKS
from smht.tasks.classification import EncodedTexts
from smht.tasks.labelled import Example, LabelledCorpus
from smht.tokenization import build_tokenizer
from smht.training.plots import draw_plots

ROWS = [
    {"step": 1, "loss": 2.0, "validation_loss": None, "accuracy": None},
    {"step": 2, "loss": 1.5, "validation_loss": 1.6, "accuracy": 0.5},
]


def examples() -> EncodedTexts:
    texts = LabelledCorpus("test", (), tuple(Example(f"text {i}", "abc"[i % 3]) for i in range(9)))
    return EncodedTexts(texts, texts, texts.labels, build_tokenizer("byte", None), 16)


def model() -> SmhtForSequenceClassification:
    sizes = {"hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 2, "max_position_embeddings": 16}
    return SmhtForSequenceClassification(SmhtConfig(stack="encoder", num_labels=3, **sizes)).eval()


def test_pictures_are_drawn(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    drawn = draw_plots(tmp_path / "plots", ROWS, TASKS["classification"], examples(), model())
    assert [path.name for path in drawn] == ["learning-curve.png", "confusion.png"]
    assert all(path.read_bytes().startswith(b"\x89PNG") for path in drawn)


def test_the_confusion_matrix_counts_labels_by_row() -> None:
    figures = pytest.importorskip("matplotlib.figure")
    always_b = model()
    with torch.no_grad():
        always_b.model.norm.weight.zero_()
        always_b.model.norm.bias.fill_(1.0)
        always_b.score.weight.copy_(torch.tensor([0.0, 1.0, 0.0])[:, None].expand(3, 8))
    figure = examples().figures(always_b, figures.Figure)["confusion"]
    assert [text.get_text() for text in figure.axes[0].texts] == ["0", "3", "0"] * 3


def test_without_matplotlib_nothing_is_drawn(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    assert draw_plots(tmp_path / "plots", ROWS, TASKS["classification"], examples(), model()) == []
    assert not (tmp_path / "plots").exists()
