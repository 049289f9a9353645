"""The page of a model whose texts attack it: nothing runs, and all of them are displayed as text."""

from __future__ import annotations

import dataclasses
import shlex
from pathlib import Path

import pytest

from graphopt.compiler.environment import Environment
from graphopt.compiler.page_source import page_source
from graphopt.page.render import page_of
from graphopt.page.section import PageSource
from tests.page.browser import Browser, Misconduct
from tests.page.graph_section import GraphSection
from tests.page.hostile_model import HOSTILE, TEXTS, hostile_model

#: Elements that a page with escaped texts does not have.
FOREIGN = "return document.querySelectorAll('img, iframe, object, embed, link, base, form, a:not([href^=\"#\"])').length"
#: Half of a pair of UTF-16, which is no character.
SURROGATE = "\ud800"


@pytest.fixture(scope="module")
def source() -> PageSource:
    command = ("graphopt", "report", HOSTILE)
    return page_source(Environment(), hostile_model(), labels=(HOSTILE, HOSTILE), command=command)


@pytest.fixture(scope="module")
def page(source: PageSource, tmp_path_factory: pytest.TempPathFactory) -> Path:
    file = tmp_path_factory.mktemp("hostile") / "page.html"
    file.write_bytes(page_of(source))
    return file


def assert_nothing_runs(browser: Browser) -> None:
    """Show all sections, as printing does, and look for effects of hostile texts."""
    for name in browser.run(
        "return [...document.querySelectorAll('main > section')].map((one) => one.dataset.name)"
    ):
        browser.run("location.hash = arguments[0]", name)
        browser.wait("return document.body.dataset.section === arguments[0]", name)
    browser.driver.execute_cdp_cmd("Page.printToPDF", {})
    assert browser.run("return window.hacked") is None
    assert browser.run("return [document.scripts.length, document.styleSheets.length]") == [2, 1]
    assert browser.run(FOREIGN) == 0
    assert browser.misconduct() == Misconduct()


def test_nothing_runs(browser: Browser, page: Path) -> None:
    browser.open(page)
    assert_nothing_runs(browser)


def test_the_title_and_the_command_are_text(browser: Browser, page: Path) -> None:
    browser.open(page)
    assert browser.driver.title == HOSTILE
    assert browser.run("return document.querySelector('h1').textContent") == HOSTILE
    summary = browser.run("return document.getElementById('section-summary').textContent")
    assert shlex.quote(HOSTILE) in summary


def test_details_and_stages_are_text(browser: Browser, page: Path) -> None:
    section = GraphSection(browser, page)
    for position, graph in enumerate(section.graphs):
        for node, name in enumerate(graph["nodes"]["name"]):
            browser.run("page.select({graph: arguments[0], node: arguments[1]})", position, node)
            assert section.name == name
            assert section.heading == graph["ops"][graph["nodes"]["op"][node]]
            for key, text in graph["nodes"]["attributes"][node] or ():
                assert section.rows(key) == [text]
        for value, name in enumerate(graph["values"]["name"]):
            browser.run("page.select({graph: arguments[0], value: arguments[1]})", position, value)
            assert section.name == name
            assert section.rows("type") == [graph["values"]["type"][value] or "unknown"]
        for scope in range(1, len(graph["scopes"])):
            browser.run("page.select({graph: arguments[0], scope: arguments[1]})", position, scope)
            assert section.name is not None and section.name.endswith(graph["scopes"][scope]["name"])
    section.press_button("Expand")
    for option in browser.run(
        "return [...document.getElementById('coloring').options].map((one) => one.value)"
    ):
        browser.run("page.colorBy(arguments[0])", option)
        section.settle()
    for _ in section.data["stages"]:
        browser.run("document.getElementById('stage-next').click()")
    assert_nothing_runs(browser)


@pytest.mark.parametrize("text", TEXTS)
def test_search_lists_matches_as_text(browser: Browser, page: Path, text: str) -> None:
    section = GraphSection(browser, page)
    found = section.search(text.replace("\u2028", " ").replace("\u2029", " ") if text[0] == "]" else text)
    names = {name for graph in section.graphs for name in graph["nodes"]["name"]}
    assert found and {name for _, name in found} <= names
    assert_nothing_runs(browser)


def test_tooltips_are_text(browser: Browser, page: Path) -> None:
    section = GraphSection(browser, page)
    section.fit()
    node = 1
    point = section.point(0, node)
    assert point is not None
    event = {"type": "mouseMoved", "x": point[0], "y": point[1]}
    browser.driver.execute_cdp_cmd("Input.dispatchMouseEvent", event)
    title = browser.wait("return document.getElementById('graph-canvas-0').title")
    assert title == f"Relu {section.graphs[0]['nodes']['name'][node]}"
    assert_nothing_runs(browser)


def test_halves_of_surrogate_pairs_do_no_harm(browser: Browser, source: PageSource, tmp_path: Path) -> None:
    graph = source.graphs[0]
    nodes = dataclasses.replace(graph.nodes, name=[name + SURROGATE for name in graph.nodes.name])
    values = dataclasses.replace(graph.values, name=[SURROGATE + name for name in graph.values.name])
    graphs = (dataclasses.replace(graph, nodes=nodes, values=values), source.graphs[1])
    file = tmp_path / "page.html"
    file.write_bytes(page_of(dataclasses.replace(source, title=SURROGATE, graphs=graphs)))
    browser.open(file, "graph")
    assert_nothing_runs(browser)
