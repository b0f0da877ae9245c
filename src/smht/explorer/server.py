"""The page's server: on this machine only, and asking nothing of any other."""

import asyncio
import os
import socket
import sys
import threading
from collections.abc import Awaitable, Callable, Iterator, MutableMapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any

from smht.errors import UsageError
from smht.explorer.viewer import Viewer

HOST = "127.0.0.1"
_FIRST_PORT = 7860
_PORTS = range(_FIRST_PORT, _FIRST_PORT + 100)
# Gradio's templates of HTML need eval; its own pictures are data. Nothing else may be fetched from anywhere.
_POLICY = (
    "default-src 'self' 'unsafe-inline' 'unsafe-eval' data: blob:; connect-src 'self'; object-src 'none'; "
    "frame-ancestors 'self'; form-action 'self'"
)
# Neither reports to its makers nor, which takes its time after each event, statistics of its own queue.
_GRADIO_SETTINGS = {"GRADIO_ANALYTICS_ENABLED": "False", "GRADIO_ANALYTICS_CACHE_FREQUENCY": str(sys.maxsize)}
_FONTS = ("system-ui", "sans-serif")
_MONOSPACE = ("ui-monospace", "monospace")

Message = MutableMapping[str, Any]


class Server:
    """A page that is being served.

    Args:
        viewer: what it shows.
        text: what it opens with; the viewer's own if not given.
        port: to listen at; the first free one from 7860 if not given.

    Raises:
        UsageError: the port is taken or cannot be had, or a text that a model cannot read.
    """

    def __init__(self, viewer: Viewer, text: str | None = None, port: int | None = None) -> None:
        os.environ |= _GRADIO_SETTINGS
        for number in _free_ports(port):
            try:
                self._page = _within_a_loop(partial(_launch, viewer, text, number))
            except OSError:
                continue  # another process was quicker
            self.address = f"http://{HOST}:{number}"
            return
        if port is not None:
            raise UsageError(f"port {port} is taken: name another --port")
        raise UsageError(f"the ports from {_PORTS[0]} to {_PORTS[-1]} are all taken: name a free one with --port")

    def wait(self) -> None:
        """Until the process is told to stop."""
        threading.Event().wait()

    def close(self) -> None:
        """Stop serving."""
        self._page.close(verbose=False)


def _launch(viewer: Viewer, text: str | None, port: int) -> Any:
    from gradio.themes import Base
    from starlette.middleware import Middleware
    from starlette.middleware.trustedhost import TrustedHostMiddleware

    from smht.explorer.page import build_page

    with suppress(ImportError):
        import_module("matplotlib.pyplot")  # Gradio would at the first answer, which then takes a second
    page = build_page(viewer, text)
    # Other hosts' pages cannot reach this one by a name of theirs that leads here.
    middleware = [Middleware(TrustedHostMiddleware, allowed_hosts=[HOST, "localhost"]), Middleware(_OnlyFromHere)]
    page.launch(
        server_name=HOST,
        server_port=port,
        share=False,
        inbrowser=False,
        prevent_thread_lock=True,
        quiet=True,
        ssr_mode=False,
        pwa=False,
        mcp_server=False,
        enable_monitoring=False,
        run_history=False,
        footer_links=[],
        theme=Base(font=_FONTS, font_mono=_MONOSPACE),
        css=Path(__file__).with_name("explorer.css").read_text(encoding="utf-8"),
        app_kwargs={"middleware": middleware, "docs_url": None, "redoc_url": None},
    )
    return page


def _within_a_loop(make: Callable[[], Any]) -> Any:
    """Call a function where an event loop runs: elsewhere Gradio makes one for each lock, and never closes it."""

    async def call() -> Any:
        return make()

    with ThreadPoolExecutor(1) as pool:
        return pool.submit(asyncio.run, call()).result()


def _free_ports(wanted: int | None) -> Iterator[int]:
    """Those that nobody listens at, of all or of the one that is wanted."""
    if wanted is not None and not 1 <= wanted <= 65535:
        raise UsageError(f"port = {wanted} must be from 1 to 65535")
    for port in _PORTS if wanted is None else (wanted,):
        with socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind((HOST, port))
            except PermissionError:
                raise UsageError(f"port {port} is not for users of this machine: take one above 1023") from None
            except OSError:
                continue
        yield port


class _OnlyFromHere:
    """Tells browsers to fetch nothing from other hosts, whatever Gradio's page may ask for."""

    def __init__(self, app: Callable[..., Awaitable[None]]) -> None:
        self._app = app

    async def __call__(self, scope: Message, receive: Any, send: Callable[[Message], Awaitable[None]]) -> None:
        async def send_with_policy(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = [*message.get("headers", []), (b"content-security-policy", _POLICY.encode())]
                message = {**message, "headers": headers}
            await send(message)

        await self._app(scope, receive, send_with_policy)
