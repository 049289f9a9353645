"""A server of one page for browsers of this machine.

It listens on 127.0.0.1 only, and answers only requests whose path is a random token and whose Host header is
its own address: programs of other users can't guess the path, and pages of other origins can't read the page
by DNS rebinding.
"""

from __future__ import annotations

import hmac
import secrets
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

#: Number of random bytes of the token.
_TOKEN_BYTES = 24


class PageServer(ThreadingHTTPServer):
    """Serves ``page`` at :attr:`url` until it is shut down.

    Args:
        page: the page as UTF-8.
        port: the port; 0 for a free one.

    Raises:
        OSError: the port is in use, or not permitted.
    """

    daemon_threads = True

    def __init__(self, page: bytes, port: int = 0) -> None:
        self.page = page
        self.path = f"/{secrets.token_urlsafe(_TOKEN_BYTES)}/"
        super().__init__(("127.0.0.1", port), _Handler)

    @property
    def host(self) -> str:
        """The address and port, as in the Host header."""
        return f"127.0.0.1:{self.server_address[1]}"

    @property
    def url(self) -> str:
        """The address of the page, with the token."""
        return f"http://{self.host}{self.path}"


class _Handler(BaseHTTPRequestHandler):
    server: PageServer
    timeout = 10  # seconds without data after which a connection is closed
    server_version, sys_version = "graphopt", ""

    def do_GET(self) -> None:
        self._answer(with_body=True)

    def do_HEAD(self) -> None:
        self._answer(with_body=False)

    def _answer(self, *, with_body: bool) -> None:
        path = self.path.partition("?")[0].encode()
        is_known = hmac.compare_digest(path, self.server.path.encode())
        if self.headers.get("Host") != self.server.host or not is_known:
            self.send_error(HTTPStatus.NOT_FOUND)
            return
        self.send_response(HTTPStatus.OK)
        self.send_header("Content-Type", "text/html; charset=utf-8")
        self.send_header("Content-Length", str(len(self.server.page)))
        self.send_header("Cache-Control", "no-store")
        self.send_header("X-Content-Type-Options", "nosniff")
        self.send_header("X-Frame-Options", "DENY")
        self.send_header("Referrer-Policy", "no-referrer")
        self.send_header("Cross-Origin-Resource-Policy", "same-origin")
        self.end_headers()
        if with_body:
            self.wfile.write(self.server.page)

    def log_message(self, format: str, *args: Any) -> None:
        """Requests are not logged: their paths contain the token."""
