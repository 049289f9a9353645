"""The server of one page: token, Host header, methods, and addresses for one request."""

from __future__ import annotations

import http.client
import socket
import threading
from collections.abc import Iterator
from urllib.parse import urlsplit

import pytest

from graphopt.page.page_server import PageServer

PAGE = "<!doctype html><p>page ✓</p>".encode()


@pytest.fixture
def server() -> Iterator[PageServer]:
    with PageServer(PAGE) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield server
        server.shutdown()
        thread.join()


def _request(
    server: PageServer, path: str, host: str | None = None, method: str = "GET"
) -> tuple[int, http.client.HTTPMessage, bytes]:
    connection = http.client.HTTPConnection(*server.server_address[:2], timeout=10)  # type: ignore[misc]
    try:
        connection.request(method, path, headers={"Host": host or server.host})
        answer = connection.getresponse()
        return answer.status, answer.headers, answer.read()
    finally:
        connection.close()


def test_the_page(server: PageServer) -> None:
    status, headers, body = _request(server, server.path)
    assert (status, body) == (200, PAGE)
    assert headers["Content-Type"] == "text/html; charset=utf-8"
    assert headers["Content-Length"] == str(len(PAGE))
    assert headers["Cache-Control"] == "no-store"
    assert headers["X-Frame-Options"] == "DENY"
    assert headers["Cross-Origin-Resource-Policy"] == "same-origin"
    assert headers["Server"].strip() == "graphopt"


def test_a_query_is_ignored(server: PageServer) -> None:
    assert _request(server, f"{server.path}?a=b")[0] == 200


def test_head(server: PageServer) -> None:
    status, headers, body = _request(server, server.path, method="HEAD")
    assert (status, headers["Content-Length"], body) == (200, str(len(PAGE)), b"")


@pytest.mark.parametrize("path", ["/", "//", "/favicon.ico", "/%2e%2e/etc/passwd", "/%C3%BC", "*"])
@pytest.mark.parametrize("method", ["GET", "HEAD"])
def test_other_paths(server: PageServer, path: str, method: str) -> None:
    status, _, body = _request(server, path, method=method)
    assert status == 404 and server.path.encode() not in body


def test_a_part_of_the_token_is_not_sufficient(server: PageServer) -> None:
    for path in (server.path[:-2], server.path[1:], server.path + "x", server.path.swapcase()):
        assert _request(server, path)[0] == 404


def test_the_host_header_must_be_the_address(server: PageServer) -> None:
    port = server.server_address[1]
    for host in (f"evil.example:{port}", f"localhost:{port}", "127.0.0.1", f"127.0.0.1:{port + 1}"):
        assert _request(server, server.path, host)[0] == 404


def test_requests_without_a_host(server: PageServer) -> None:
    with socket.create_connection(server.server_address[:2], timeout=10) as client:  # type: ignore[arg-type]
        client.sendall(f"GET {server.path} HTTP/1.0\r\n\r\n".encode())
        assert b" 404 " in client.makefile("rb").readline()


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "OPTIONS"])
def test_other_methods(server: PageServer, method: str) -> None:
    assert _request(server, server.path, method=method)[0] == 501


def test_the_token_is_random_and_long() -> None:
    paths = []
    for _ in range(2):
        with PageServer(PAGE) as server:
            paths.append(server.path)
    assert paths[0] != paths[1] and all(len(path) >= 32 for path in paths)


def test_only_this_machine_can_connect(server: PageServer) -> None:
    assert server.socket.getsockname()[0] == "127.0.0.1"


def test_an_address_for_one_request(server: PageServer) -> None:
    url = urlsplit(server.url_for_one_request())
    assert _request(server, url.path, "evil.example")[0] == 404
    status, headers, body = _request(server, url.path)
    assert (status, headers["Location"], body) == (302, server.path, b"")
    assert _request(server, url.path)[0] == 404
    assert _request(server, headers["Location"])[2] == PAGE


def test_a_closed_connection_is_no_error(capfd: pytest.CaptureFixture[str]) -> None:
    with PageServer(PAGE * 1_000_000) as server:
        thread = threading.Thread(target=server.handle_request)
        thread.start()
        with socket.create_connection(server.server_address[:2], timeout=10) as client:  # type: ignore[arg-type]
            client.sendall(f"GET {server.path} HTTP/1.1\r\nHost: {server.host}\r\n\r\n".encode())
            client.recv(10)
        thread.join()
    assert capfd.readouterr().err == ""


def test_a_port_in_use(server: PageServer) -> None:
    with pytest.raises(OSError):
        PageServer(PAGE, server.server_address[1])
