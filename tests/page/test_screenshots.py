"""The pictures of docs/report.md: ``python -m pytest tests/page/test_screenshots.py --screenshots`` writes them anew."""

from __future__ import annotations

import base64
import struct
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.page.browser import Browser, Misconduct
from tests.page.conftest import PageOf
from tests.page.graph_section import GraphSection

IMAGES = Path(__file__).resolve().parents[2] / "docs" / "images"
#: The size of a picture in pixels, and its maximum in bytes.
SIZE, BYTES = (1400, 900), 200_000


def _summary(browser: Browser, page: Path) -> None:
    browser.open(page, "summary")


def _graph(browser: Browser, page: Path) -> None:
    """A node of the result, its details, and the nodes of the original that it replaces."""
    section = GraphSection(browser, page)
    fused = next(
        node for node, related in enumerate(section.graphs[1]["nodes"]["related"]) if len(related) > 2
    )
    browser.run("page.select({graph: 1, node: arguments[0]})", fused)
    section.settle()


def _stages(browser: Browser, page: Path) -> None:
    """The stage with the most new nodes, its differences, and the nodes that it removed and created."""
    section = GraphSection(browser, page)
    added = [len(stage["added"]) for stage in section.data["stages"]]
    browser.driver.find_elements("css selector", "#stages .stage")[added.index(max(added))].click()
    browser.run("document.querySelector('#stages').scrollIntoView({block: 'end'})")
    section.settle()


PICTURES: dict[str, tuple[str, Callable[[Browser, Path], None]]] = {
    "report-summary.png": ("control_flow", _summary),
    "report-graph.png": ("cnn", _graph),
    "report-stages.png": ("transformer", _stages),
}


@pytest.mark.parametrize("picture", PICTURES)
def test_write(browser: Browser, page_of: PageOf, picture: str, request: pytest.FixtureRequest) -> None:
    if not request.config.getoption("--screenshots"):
        pytest.skip("only with --screenshots")
    model, show = PICTURES[picture]
    metrics = {"width": SIZE[0], "height": SIZE[1], "deviceScaleFactor": 1, "mobile": False}
    browser.driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", metrics)
    try:
        show(browser, page_of(model))
        assert browser.misconduct() == Misconduct()
        image = browser.driver.execute_cdp_cmd("Page.captureScreenshot", {"format": "png"})["data"]
    finally:
        browser.driver.execute_cdp_cmd("Emulation.clearDeviceMetricsOverride", {})
    IMAGES.mkdir(exist_ok=True)
    (IMAGES / picture).write_bytes(base64.b64decode(image))


@pytest.mark.parametrize("picture", PICTURES)
def test_pictures_have_their_size(picture: str) -> None:
    content = (IMAGES / picture).read_bytes()
    assert content.startswith(b"\x89PNG") and len(content) <= BYTES
    assert struct.unpack(">II", content[16:24]) == SIZE
