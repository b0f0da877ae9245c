"""How long the explorer's page lets people wait: until it is there, and until what was typed is answered.

`smht explorer RUN` in a process of its own, in headless Chromium with nothing in its cache: seconds from the request to
the first table of probabilities, and from the last letter typed to the count of its tokens. Without a run: the demo
preset after one step, with a tokenizer of bytes, which costs the same. Needs playwright and Debian's chromium.

    python benchmarks/explorer.py [RUN] [--letters 66] [--rounds 5] [--json]
"""

import json
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from statistics import median

from playwright.sync_api import Browser, sync_playwright
from reporting import Figure, parser, report

TEXT = "def read(path):\n    with open(path) as file:\n        return file."
LETTERS = len(TEXT)
WAIT_MILLISECONDS = 60_000
GOAL_PAINT, GOAL_ANSWER = "<= 3", "<= 1"
UNTRAINED = ("--tokenizer", "byte", "--steps", "1", "--device", "cpu")


@contextmanager
def served(run: Path) -> Iterator[str]:
    """The page's address, as long as the context lasts."""
    command = [sys.executable, "-m", "smht", "explorer", str(run), "--no-browser", "--json"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        yield json.loads("".join(iter(process.stdout.readline, "}\n")) + "}")["address"]
    finally:
        process.send_signal(signal.SIGINT)
        process.wait()


def visit(chromium: Browser, address: str, text: str) -> tuple[float, float]:
    """Seconds until the page is there, and until it answers."""
    context = chromium.new_context()
    page = context.new_page()
    page.set_default_timeout(WAIT_MILLISECONDS)
    start = time.perf_counter()
    page.goto(address)
    page.locator("#tokens table").first.wait_for()
    painted = time.perf_counter() - start
    page.locator("#text textarea").fill(text)
    start = time.perf_counter()
    page.locator("#status").get_by_text(f"{len(text) + 1} of at most").wait_for()
    answered = time.perf_counter() - start
    context.close()
    return painted, answered


def measure(run: Path, text: str, rounds: int) -> list[Figure]:
    """Medians over visits; the first one, for which the server reads its own files, is told apart."""
    with served(run) as address, sync_playwright() as playwright:
        chromium = playwright.chromium.launch(executable_path=shutil.which("chromium"), args=["--no-sandbox"])
        first, *others = [visit(chromium, address, text) for _ in range(rounds + 1)]
        chromium.close()
    painted, answered = (median(seconds) for seconds in zip(*others, strict=True))
    return [
        Figure("the first visitor's first paint", first[0], "s"),
        Figure("first paint", painted, "s", GOAL_PAINT),
        Figure(f"an answer to {len(text)} letters", answered, "s", GOAL_ANSWER),
    ]


def main() -> None:
    arguments = parser(__doc__)
    arguments.add_argument("run", nargs="?", type=Path, help="a run of a language model with a tokenizer of bytes")
    arguments.add_argument("--letters", type=int, default=LETTERS, help="of the text that is typed")
    arguments.add_argument("--rounds", type=int, default=5)
    given = arguments.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        run = given.run or Path(folder) / "run"
        if given.run is None:
            command = [sys.executable, "-m", "smht", "train", *UNTRAINED, "--output", str(run)]
            subprocess.run(command, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        text = (TEXT * (given.letters // LETTERS + 1))[: given.letters]
        report(measure(run, text, given.rounds), given.json)


if __name__ == "__main__":
    main()
