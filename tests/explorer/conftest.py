"""Servers and a browser that the tests of the page share."""

from collections.abc import Iterator

import pytest
from playwright.sync_api import Browser

from helpers.browser import browser
from smht.explorer.server import Server
from smht.explorer.subject import preset_subject
from smht.explorer.viewer import Viewer


@pytest.fixture(scope="session")
def chromium() -> Iterator[Browser]:
    """One browser for all tests."""
    with browser() as opened:
        yield opened


@pytest.fixture(scope="session")
def mini() -> Iterator[str]:
    """The address of the page that opens where no run is named."""
    server = Server(Viewer([preset_subject()]))
    yield server.address
    server.close()
