"""The page's server: on this machine only, and asking nothing of any other."""

import os
import socket
import threading
from collections.abc import Awaitable, Callable, MutableMapping
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
_FONTS = ("system-ui", "sans-serif")
_MONOSPACE = ("ui-monospace", "monospace")

Message = MutableMapping[str, Any]


class Server:
    """A page that is being served.

    Args:
        viewer: what it shows.
        text: what it opens with; the first model's own if not given.
        port: to listen at; the first free one from 7860 if not given.

    Raises:
        UsageError: the port is taken or cannot be had.
    """

    def __init__(self, viewer: Viewer, text: str | None = None, port: int | None = None) -> None:
        os.environ["GRADIO_ANALYTICS_ENABLED"] = "False"
        from gradio.themes import Base
        from starlette.middleware import Middleware
        from starlette.middleware.trustedhost import TrustedHostMiddleware

        from smht.explorer.page import build_page

        self._page = build_page(viewer, text)
        port = _free_port(port)
        # Other hosts' pages cannot reach this one by a name of theirs that leads here.
        middleware = [Middleware(TrustedHostMiddleware, allowed_hosts=[HOST, "localhost"]), Middleware(_OnlyFromHere)]
        self._page.launch(
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
        self.address = f"http://{HOST}:{port}"

    def wait(self) -> None:
        """Until the process is told to stop."""
        threading.Event().wait()

    def close(self) -> None:
        """Stop serving."""
        self._page.close(verbose=False)


def _free_port(wanted: int | None) -> int:
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
            return port
    if wanted is None:
        raise UsageError(f"the ports from {_PORTS[0]} to {_PORTS[-1]} are all taken: name a free one with --port")
    raise UsageError(f"port {wanted} is taken: name another --port")


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
