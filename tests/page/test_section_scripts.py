"""The charts and tables of sections in a browser, with hostile names."""

from __future__ import annotations

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
from tests.page.browser import Browser, Misconduct
from tests.page.run_times import kernel_time, run_time

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
def test_sections_have_their_charts(browser: Browser, page: Path, section: str, charts: int) -> None:
    browser.open(page, section)
    assert browser.run(f"return document.querySelectorAll('#section-{section} svg').length") == charts
    assert browser.misconduct() == Misconduct()
    assert browser.run("return document.querySelectorAll('img').length") == 0


def test_names_of_kernels_are_text(browser: Browser, page: Path) -> None:
    browser.open(page, "run-time")
    texts = browser.run(
        "return [...document.querySelectorAll('#section-run-time .content tbody tr td:first-child')]"
        ".map((cell) => cell.textContent)"
    )
    assert texts.count(HOSTILE) == 2


def test_tensors_can_be_filtered(browser: Browser, page: Path) -> None:
    browser.open(page, "tensors")
    count = "return document.querySelectorAll('#section-tensors .content tbody tr').length"
    assert browser.run(count) == 2
    browser.driver.find_element("css selector", "#section-tensors input").send_keys("departs")
    assert browser.run(count) == 1


def test_nodes_have_the_colours_of_measurements(browser: Browser, page: Path) -> None:
    browser.open(page)
    colours = browser.run(
        "return ['time', 'share', 'error'].map((name) => [0, 1].map((node) => page.colorings.get(name).color(0, node)))"
    )
    time, share, error = colours
    assert time[0] == time[1] and time[0] is not None  # both have more than 5 % of the time
    assert share[0] == share[1] and share[0] is not None
    assert error[0] != error[1] and None not in error


def test_all_charts_are_printed(browser: Browser, page: Path) -> None:
    browser.open(page)
    assert browser.run("return document.querySelectorAll('svg.chart').length") == 0
    browser.driver.execute_cdp_cmd("Page.printToPDF", {})
    with browser.media(medium="print"):
        widths = browser.run(
            "return [...document.querySelectorAll('svg.chart')].map((one) => one.getBoundingClientRect().width)"
        )
    assert len(widths) == 12 and min(widths) > 200
    assert browser.misconduct() == Misconduct()


def test_charts_are_stops_of_the_tab_key_with_titles(browser: Browser, page: Path) -> None:
    browser.open(page, "run-time")
    charts = browser.run(
        "return [...document.querySelectorAll('#section-run-time svg.chart')]"
        ".map((one) => [one.tabIndex, one.getAttribute('aria-label'), one.querySelectorAll('title').length])"
    )
    assert len(charts) == 8
    assert all(index == 0 and label and titles for index, label, titles in charts)
