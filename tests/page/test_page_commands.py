"""Pages that commands write or serve, in a browser."""

from __future__ import annotations

import http.client
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from tests.page.browser import Browser, Misconduct
from zoo import SAMPLES

#: Runs graphopt with Ctrl-C, which processes in the background of a shell ignore, and so do their children.
_INTERRUPTIBLE = """import runpy, signal
signal.signal(signal.SIGINT, signal.default_int_handler)
runpy.run_module("graphopt", run_name="__main__")"""


def _environment(tmp_path: Path) -> dict[str, str]:
    return {**os.environ, "XDG_CACHE_HOME": str(tmp_path / "cache")}


@pytest.fixture
def model(tmp_path: Path) -> Path:
    path = tmp_path / "control_flow.onnx"
    path.write_bytes(SAMPLES["control_flow"].build().SerializeToString())
    return path


@pytest.fixture
def server(model: Path, tmp_path: Path) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """A running ``graphopt view``, and its address."""
    words = [sys.executable, "-c", _INTERRUPTIBLE, "view", str(model)]
    with subprocess.Popen(words, stdout=subprocess.PIPE, text=True, env=_environment(tmp_path)) as process:
        try:
            assert process.stdout is not None
            found = re.search(r"http://\S+", process.stdout.readline())
            assert found is not None
            yield process, found[0]
        finally:
            process.kill()


def graphopt(tmp_path: Path, *arguments: object) -> int:
    words = [sys.executable, "-m", "graphopt", *(str(argument) for argument in arguments)]
    return subprocess.run(words, check=False, env=_environment(tmp_path), capture_output=True).returncode


def test_compare_writes_a_page(browser: Browser, model: Path, tmp_path: Path) -> None:
    page = tmp_path / "compare.html"
    assert graphopt(tmp_path, "compare", model, "--other-optimizations", "default", "--html", page) == 0
    browser.open(page, "tensors")
    assert browser.run("return document.querySelectorAll('#section-tensors tbody tr').length") > 3
    assert browser.misconduct() == Misconduct()


def test_optimize_writes_a_page_beside_the_result(browser: Browser, model: Path, tmp_path: Path) -> None:
    result, page = tmp_path / "result.onnx", tmp_path / "optimize.html"
    assert graphopt(tmp_path, "optimize", model, "-o", result, "--html", page) == 0
    assert result.exists()
    browser.open(page, "graph")
    assert browser.run("return document.querySelectorAll('#stages .stage').length") > 3
    assert browser.misconduct() == Misconduct()


def test_report_of_two_models_writes_a_page(browser: Browser, model: Path, tmp_path: Path) -> None:
    result, page = tmp_path / "result.onnx", tmp_path / "report.html"
    assert graphopt(tmp_path, "optimize", model, "-o", result, "--provenance") == 0
    assert graphopt(tmp_path, "report", model, result, "-o", page) == 0
    browser.open(page, "graph")
    assert browser.run("return page.payload.graphs.map((graph) => graph.label)") == [str(model), str(result)]
    assert browser.misconduct() == Misconduct()


def test_view_serves_a_page_until_it_is_interrupted(
    browser: Browser, server: tuple[subprocess.Popen[str], str]
) -> None:
    process, address = server
    browser.open(address)
    assert browser.driver.title.endswith("control_flow.onnx")
    assert browser.run("return page.payload.graphs.length") == 1
    assert browser.misconduct() == Misconduct()
    process.send_signal(signal.SIGINT)
    assert process.wait(60) == 0


def test_view_answers_only_requests_with_its_token_and_address(
    browser: Browser, server: tuple[subprocess.Popen[str], str]
) -> None:
    _, address = server
    parts = urlsplit(address)

    def status(path: str, host: str) -> int:
        connection = http.client.HTTPConnection(parts.netloc, timeout=60)
        connection.request("GET", path, headers={"Host": host})
        return connection.getresponse().status

    assert status(parts.path, parts.netloc) == 200
    assert status(parts.path, f"localhost:{parts.port}") == 404
    assert status(parts.path, "attacker.example") == 404
    wrong = parts.path[:-2] + ("A" if parts.path[-2] != "A" else "B") + "/"
    for path in ("/", wrong, parts.path[:-1], parts.path + "x"):
        assert status(path, parts.netloc) == 404
    browser.open(f"http://{parts.netloc}{wrong}")
    assert "404" in browser.run("return document.body.textContent")
    assert browser.run("return document.getElementById('data')") is None
