"""A real browser without a window, and what no page of ours may do in it."""

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlsplit

import pytest
from playwright.sync_api import Browser, Page, expect, sync_playwright

CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
PATIENCE = 20_000
"""Milliseconds; a busy machine is slow, and a page that never answers is a failure all the same."""
expect.set_options(timeout=PATIENCE)


@contextmanager
def browser() -> Iterator[Browser]:
    """Chromium; without one tests are skipped, but not where CI is to install it."""
    if CHROMIUM is None:
        assert not os.environ.get("CI"), "CI has to have chromium: .ci/run installs it"
        pytest.skip("no chromium here")
    with sync_playwright() as playwright:
        chromium = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield chromium
        chromium.close()


@dataclass
class Watched:
    """A page, with everything that it complained of and asked for."""

    page: Page
    complaints: list[str] = field(default_factory=list)
    requests: list[str] = field(default_factory=list)

    def check(self, host: str | None) -> None:
        """No complaint, and no request but to `host`; None where there may be none at all."""
        assert self.complaints == []
        asked = {urlsplit(url).netloc for url in self.requests if not url.startswith(("data:", "blob:", "file:"))}
        assert asked <= {host}, asked


@contextmanager
def watched(chromium: Browser, address: str, width: int = 1280, is_new: bool = False) -> Iterator[Watched]:
    """Open a page, and check in the end that it did nothing wrong.

    Args:
        chromium: the browser.
        address: the page's.
        width: of the window, in pixels.
        is_new: whether it is another browser to the page, which has nothing in its cache; slower.
    """
    window: Any = {"width": width, "height": 900}
    context = chromium.new_context() if is_new or not chromium.contexts else chromium.contexts[0]
    page = context.new_page()
    page.set_viewport_size(window)
    page.set_default_timeout(PATIENCE)
    seen = Watched(page)
    page.on("console", lambda line: seen.complaints.append(line.text) if line.type in ("error", "warning") else None)
    page.on("pageerror", lambda error: seen.complaints.append(str(error)))
    page.on("request", lambda request: seen.requests.append(request.url))
    page.goto(address)
    yield seen
    seen.check(urlsplit(address).netloc or None)
    page.close()
    if is_new:
        context.close()


def fits(page: Page) -> bool:
    """Whether the page need not be scrolled sideways."""
    return page.evaluate("document.documentElement.scrollWidth <= document.documentElement.clientWidth")
