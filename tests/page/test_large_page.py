"""The page of a model of 20,000 nodes in a browser."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from graphopt.compiler.environment import Environment
from graphopt.compiler.page_source import view_source
from graphopt.page.render import page_of
from tests.page.browser import Browser, Misconduct
from tests.page.graph_section import GraphSection
from tests.page.large_models import large_model
from tests.page.report_pages import optimization_page

NODES = 20_000

#: Milliseconds from the start of loading until two frames are painted after all scripts have run.
PAINTED = """const done = arguments[arguments.length - 1];
requestAnimationFrame(() => requestAnimationFrame(() => done(performance.now())));"""
#: A generous bound in milliseconds, for machines with other work.
BOUND = 20_000


@pytest.fixture(scope="module", params=["view", pytest.param("report", marks=pytest.mark.slow)])
def page(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The page of one graph, and that of an optimization with both graphs and its stages."""
    model = large_model(NODES)
    if request.param == "view":
        content = page_of(view_source(Environment(), model, "large"))
    else:
        content = optimization_page("large", model)
    file = tmp_path_factory.mktemp("large") / f"{request.param}.html"
    file.write_bytes(content)
    return file


def test_the_page_is_not_larger_than_its_nodes_require(page: Path) -> None:
    assert page.stat().st_size <= 6e6 + 1e3 * NODES


def test_the_graph_is_soon_interactive(browser: Browser, page: Path) -> None:
    browser.open(page, "graph")
    milliseconds = browser.driver.execute_async_script(PAINTED)
    print(f"{page.stem}: interactive after {milliseconds:.0f} ms, {page.stat().st_size:,} bytes")
    assert milliseconds < BOUND
    assert browser.misconduct() == Misconduct()


def test_a_node_in_the_middle_is_found_and_shown(browser: Browser, page: Path) -> None:
    from selenium.webdriver import Keys

    section = GraphSection(browser, page)
    name = section.graphs[0]["nodes"]["name"][NODES // 2]
    started = time.perf_counter()
    found = section.search(f"name:{name}")
    print(f"{page.stem}: {time.perf_counter() - started:.2f} s to search")
    assert {match for _, match in found} == {name}
    browser.press(Keys.ENTER)
    assert section.name == name
    section.click(0, NODES // 2)  # it is visible
    assert section.name == name
    assert browser.misconduct() == Misconduct()


def test_all_nodes_can_be_shown_without_scopes(browser: Browser, page: Path) -> None:
    section = GraphSection(browser, page)
    for button in ("All nodes", "Fit", "Scopes", "Expand", "Fit"):
        started = time.perf_counter()
        section.press_button(button)
        print(f"{page.stem}: {time.perf_counter() - started:.2f} s to {button}")
    count = browser.run(
        "return new Set(Array.from({length: arguments[0]}, (_, node) => String(page.pointOf(0, node)))).size",
        NODES,
    )
    assert count == NODES
    assert browser.misconduct() == Misconduct()
