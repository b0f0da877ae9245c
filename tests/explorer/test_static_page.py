from pathlib import Path

import pytest
import torch

from helpers.pages import addresses, parse_page
from helpers.subjects import classifier, subject, translator
from smht.errors import UsageError
from smht.explorer.reading import Typed
from smht.explorer.sections import SECTIONS
from smht.explorer.static_page import compose_page, save_page
from smht.explorer.subject import PRESET_IDS, preset_subject
from smht.explorer.viewer import Viewer


@pytest.mark.parametrize("make", [preset_subject, subject, translator, classifier])
def test_one_file_with_all_sections_that_asks_for_nothing(make: object) -> None:
    one = make()  # pyright: ignore[reportCallIssue]
    text = "<script>alert(1)</script>" if one.tokenizer else PRESET_IDS
    page = parse_page(compose_page(Viewer([one]), Typed(text)))
    assert not page.all("script")
    assert all(address.startswith("data:") for address in addresses(page))
    assert [section.attributes["id"] for section in page.all("section")] == [section.name for section in SECTIONS]
    assert page.all("pre")[0].text == text
    for step in Viewer([one]).read(Typed(text))[0].trace.steps:
        assert f"{step.number} {step.name}" in page.text


def test_two_models_side_by_side() -> None:
    page = parse_page(compose_page(Viewer([subject("one"), subject("<two>", split=())]), Typed("ab")))
    names = [article.attributes["aria-label"] for article in page.all("article")]
    assert names == ["one", "<two>"] * len(SECTIONS)


def test_a_long_text_through_a_deep_model_stays_small() -> None:
    fields = {"hidden_size": 96, "num_hidden_layers": 12, "num_attention_heads": 12, "max_position_embeddings": 512}
    one = subject(**fields)
    text = "".join(chr(code) for code in torch.randint(33, 126, (511,), generator=torch.manual_seed(0)).tolist())
    page = compose_page(Viewer([one]), Typed(text))
    assert len(page.encode()) < 2_500_000
    assert page.count('class="thumbnail"') == 144
    assert "Of 12 blocks, the first and the last are shown." in page


def test_files_are_written_where_there_is_none(tmp_path: Path) -> None:
    viewer, typed = Viewer([preset_subject()]), Typed(PRESET_IDS)
    save_page(viewer, typed, tmp_path / "page.html")
    assert parse_page((tmp_path / "page.html").read_text(encoding="utf-8")).all("main")
    for path, says in (
        (tmp_path / "page.html", "is there already: name another --save"),
        (tmp_path / "page.txt", "name an .html file"),
        (tmp_path / "no" / "page.html", "there is no folder"),
    ):
        with pytest.raises(UsageError, match=says):
            save_page(viewer, typed, path)
    with pytest.raises(UsageError, match="no list of token ids"):
        save_page(viewer, Typed("x"), tmp_path / "other.html")
    assert not (tmp_path / "other.html").exists()
