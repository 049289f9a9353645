"""The charts and tables of sections in a browser, with hostile names."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import graphopt
from graphopt import ir
from graphopt.page.page_data import GraphData, Layout, NodeColumns, Scope, ValueColumns
from graphopt.page.render import page_of
from graphopt.page.section import PageSource
from graphopt.training.loss_log import LossRecord
from tests.model_testing import parse
from tests.page.run_times import kernel_time, run_time

CHROMIUM, DRIVER = shutil.which("chromium"), shutil.which("chromedriver")
HOSTILE = "</script><img src=x onerror=alert(1)>"
MODEL = "g (float[N] x) => (float[N] z) { [na] y = Exp(x)  [nb] z = Neg(y) }"


def _graph(id: Any, model: ir.Model) -> GraphData:
    """The graph of a chain of nodes."""
    names = [ir.label(node) for node in model.graph]
    rows = list(range(len(names)))
    nodes = NodeColumns(
        name=names,
        op=[0] * len(names),
        scope=[0] * len(names),
        inputs=[[row] for row in rows],
        outputs=[[row + 1] for row in rows],
        attributes=[None] * len(names),
        by=[-1] * len(names),
        fate=[0] * len(names),
        related=[[row] for row in rows],
        group=[-1] * len(names),
        device=[-1] * len(names),
        notes=[None] * len(names),
    )
    size = len(names) + 1
    kinds = [1, *[0] * (size - 2), 3]
    values = ValueColumns([f"v{row}" for row in range(size)], ["float32[N]"] * size, kinds, [None] * size)
    layout = Layout(rows, rows, [0.0] * len(names))
    return GraphData(id, id, nodes, values, ops=["Op"], scopes=[Scope("", -1, "graph", layout)], flat=layout)


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    """A headless browser that records its console."""
    pytest.importorskip("selenium")
    if CHROMIUM is None or DRIVER is None:
        pytest.skip("the Debian packages chromium and chromium-driver are not installed")
    from selenium import webdriver
    from selenium.webdriver.chrome.options import Options
    from selenium.webdriver.chrome.service import Service

    options = Options()
    for argument in ("--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage"):
        options.add_argument(argument)
    options.binary_location = CHROMIUM
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    driver = webdriver.Chrome(options=options, service=Service(DRIVER))
    yield driver
    driver.quit()


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A page with all sections."""
    model, other = parse(MODEL), parse(MODEL.replace("Neg", "Abs"))
    profile = graphopt.record_profile(model, [{"x": np.ones(size, np.float32)} for size in (1, 1, 2)])
    first, second = (ir.label(node) for node in model.graph)
    kernels = [kernel_time(HOSTILE, "Exp", 1.0, first), kernel_time("plain", "Neg", 2.0, second)]
    source = PageSource(
        "model",
        graphs=[_graph("original", model), _graph("optimized", other)],
        run_time=run_time(kernels, ["CPUExecutionProvider"] * 2),
        comparison=graphopt.compare(model, other, device="cpu"),
        profile=profile,
        losses=[LossRecord(step, 1 / step, step / 10) for step in range(1, 50)],
        names=(HOSTILE, "b"),
    )
    path = tmp_path_factory.mktemp("page") / "page.html"
    path.write_bytes(page_of(source))
    return path


@pytest.mark.parametrize(
    ("section", "charts"), [("run-time", 8), ("tensors", 1), ("profiles", 1), ("training", 2)]
)
def test_sections_have_their_charts(browser: Any, page: Path, section: str, charts: int) -> None:
    browser.get("about:blank")
    browser.get(f"{page.as_uri()}#{section}")
    assert (
        browser.execute_script(f"return document.querySelectorAll('#section-{section} svg').length") == charts
    )
    assert browser.get_log("browser") == []
    assert browser.execute_script("return document.querySelectorAll('img').length") == 0


def test_names_of_kernels_are_text(browser: Any, page: Path) -> None:
    browser.get("about:blank")
    browser.get(f"{page.as_uri()}#run-time")
    texts = browser.execute_script(
        "return [...document.querySelectorAll('#section-run-time .content tbody tr td:first-child')]"
        ".map((cell) => cell.textContent)"
    )
    assert texts.count(HOSTILE) == 2


def test_tensors_can_be_filtered(browser: Any, page: Path) -> None:
    browser.get("about:blank")
    browser.get(f"{page.as_uri()}#tensors")
    count = "return document.querySelectorAll('#section-tensors .content tbody tr').length"
    assert browser.execute_script(count) == 2
    browser.find_element("css selector", "#section-tensors input").send_keys("departs")
    assert browser.execute_script(count) == 1


def test_nodes_have_the_colours_of_measurements(browser: Any, page: Path) -> None:
    browser.get("about:blank")
    browser.get(page.as_uri())
    colours = browser.execute_script(
        "return ['time', 'share', 'error'].map((name) => [0, 1].map((node) => page.colorings.get(name).color(0, node)))"
    )
    time, share, error = colours
    assert time[0] == time[1] and time[0] is not None  # both have more than 5 % of the time
    assert share[0] == share[1] and share[0] is not None
    assert error[0] != error[1] and None not in error
