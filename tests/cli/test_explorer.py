import json
import os
import signal
import socket
import subprocess
import sys
import urllib.request
from pathlib import Path

import pytest

from helpers.command_line import refuse, succeed
from helpers.pages import parse_page


def test_a_page_in_a_file(run: Path) -> None:
    assert succeed("explorer", run, "split head", "--save", "page.html").out == "page.html\n"
    page = parse_page(Path("page.html").read_text(encoding="utf-8"))
    assert "split head" in page.all("pre")[0].text
    assert str(run) in page.all("title")[0].text


def test_without_a_run_the_file_is_about_the_article() -> None:
    assert succeed("explorer", "--save", "page.html", "--json").json == {"page": "page.html"}
    assert "17, 52, 3, 88" in Path("page.html").read_text(encoding="utf-8")


def test_the_articles_model_reads_ids_of_ones_own() -> None:
    succeed("explorer", "5, 6, 7", "--save", "ids.html")
    assert all(f"<bdi>{index}</bdi>" in Path("ids.html").read_text() for index in (5, 6, 7))
    refuse("explorer", "a run", "--save", "b.html", says="smht explorer 'a run' 'a text' --save b.html")


def test_two_runs_in_a_file(run: Path, copied_run: Path) -> None:
    succeed("explorer", run, copied_run, "text", "--save", "page.html")
    articles = parse_page(Path("page.html").read_text(encoding="utf-8")).all("article")
    assert {article.attributes["aria-label"] for article in articles} == {str(run), str(copied_run)}


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("nowhere",), "there is no run folder nowhere"),
        (("a", "b", "c"), "3 runs were named and a page shows two at most"),
        (("nowhere", "text", "--save", "page.html"), "there is no run folder nowhere"),
        (("nowhere", "--save", "page.html"), "give a text after the run"),
        (("--save", "page.txt"), "page.txt: name an .html file"),
        (("--save", "no/page.html"), "there is no folder"),
        (("--port", "0"), "port = 0 must be from 1 to 65535"),
        (("--port", "65536"), "port = 65536 must be from 1 to 65535"),
        (("--save", "page.html", "--port", "9000"), "--port and --no-browser are for a page that is served"),
    ],
)
def test_what_cannot_be_shown(arguments: tuple[str, ...], says: str) -> None:
    refuse("explorer", *arguments, says=says)


def test_texts_that_cannot_be_read(run: Path) -> None:
    refuse("explorer", run, "", "--save", "page.html", says="the text is empty")
    refuse("explorer", run, "x" * 17, "--save", "page.html", says=("reads at most 16", "take 2 away"))


def test_a_file_that_is_there_is_left_alone(run: Path) -> None:
    Path("page.html").write_text("mine")
    refuse("explorer", run, "text", "--save", "page.html", says="page.html is there already")


def test_a_port_that_is_taken() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        refuse("explorer", "--port", port, "--no-browser", says=f"port {port} is taken: name another --port")


def test_a_missing_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "gradio", None)
    refuse("explorer", says="the explorer needs gradio: pip install 'smht[explorer]'")
    succeed("explorer", "--save", "page.html")
    monkeypatch.setitem(sys.modules, "PIL", None)
    refuse("explorer", says="the explorer needs pillow and gradio: pip install 'smht[explorer]'")
    refuse("explorer", "--save", "other.html", says="the explorer needs pillow: pip")


@pytest.mark.slow
def test_the_server_says_where_it_is_answers_there_only_and_ends_with_ctrl_c(tmp_path: Path) -> None:
    # What is started in the background of a shell begins with this signal ignored.
    code = (
        "import signal, sys; signal.signal(signal.SIGINT, signal.default_int_handler); "
        "sys.argv = ['smht', 'explorer', '--no-browser', '--json']; from smht.cli.main import main; main()"
    )
    home = tmp_path / "home"
    home.mkdir()
    environment = {**os.environ, "HOME": str(home), "GRADIO_SERVER_NAME": "0.0.0.0", "GRADIO_SHARE": "True"}
    process = subprocess.Popen(
        [sys.executable, "-c", code], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment
    )
    assert process.stdout is not None
    lines = [process.stdout.readline() for _ in range(3)]
    address = json.loads("".join(lines))["address"]
    assert address.startswith("http://127.0.0.1:")
    with urllib.request.urlopen(address) as answer:
        assert "connect-src 'self'" in answer.headers["content-security-policy"]
        assert "smht explorer" in answer.read().decode()
    elsewhere = urllib.request.Request(address, headers={"Host": "example.org"})
    with pytest.raises(urllib.error.HTTPError, match="400"):
        urllib.request.urlopen(elsewhere)
    process.send_signal(signal.SIGINT)
    out, errors = process.communicate(timeout=60)
    assert (process.returncode, out, errors) == (0, "", "the explorer has ended\n")
    assert {path.name for path in tmp_path.iterdir()} == {"home", "text.txt"}
