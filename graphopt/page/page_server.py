"""A server of one page for browsers of this machine.

It listens on 127.0.0.1 only, and answers only requests whose path is a random token and whose Host header is
its own address: programs of other users can't guess the path, and pages of other origins can't read the page
by DNS rebinding. The command line of a browser, which other users can list, contains an address that is valid
for one request.
"""

from __future__ import annotations

import hmac
import secrets
import socketserver
import sys
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

#: Number of random bytes of the token.
_TOKEN_BYTES = 24


def _random_path() -> str:
    return f"/{secrets.token_urlsafe(_TOKEN_BYTES)}/"


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
        self.path = _random_path()
        self._once: dict[str, None] = {}
        super().__init__(("127.0.0.1", port), _Handler)

    def server_bind(self) -> None:
        """Bind the socket, without the query for a host name of the base class, which may be slow."""
        socketserver.TCPServer.server_bind(self)
        self.server_name, self.server_port = "127.0.0.1", self.server_address[1]

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A browser that closes a connection is no error."""
        if not isinstance(sys.exc_info()[1], OSError):
            super().handle_error(request, client_address)

    @property
    def host(self) -> str:
        """The address and port, as in the Host header."""
        return f"127.0.0.1:{self.server_address[1]}"

    @property
    def url(self) -> str:
        """The address of the page, with the token."""
        return f"http://{self.host}{self.path}"

    def url_for_one_request(self) -> str:
        """A new address that redirects to :attr:`url` once."""
        path = _random_path()
        self._once[path] = None
        return f"http://{self.host}{path}"

    def spends(self, path: str) -> bool:
        """Whether ``path`` is that of an address for one request, which becomes invalid."""
        return self._once.pop(path, path) is None


class _Handler(BaseHTTPRequestHandler):
    server: PageServer
    timeout = 10  # seconds without data after which a connection is closed
    server_version, sys_version = "graphopt", ""

    def do_GET(self) -> None:
        self._answer(with_body=True)

    def do_HEAD(self) -> None:
        self._answer(with_body=False)

    def _answer(self, *, with_body: bool) -> None:
        path = self.path.partition("?")[0]
        is_ours = self.headers.get("Host") == self.server.host
        if is_ours and self.server.spends(path):
            self.send_response(HTTPStatus.FOUND)
            self.send_header("Location", self.server.path)
            self.send_header("Content-Length", "0")
            self.send_header("Cache-Control", "no-store")
            self.send_header("Referrer-Policy", "no-referrer")
            self.end_headers()
            return
        if not is_ours or not hmac.compare_digest(path.encode(), self.server.path.encode()):
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
