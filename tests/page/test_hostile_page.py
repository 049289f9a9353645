"""The page of a model whose texts attack it: nothing runs, and all of them are displayed as text."""

from __future__ import annotations

import dataclasses
import shlex
from pathlib import Path

import pytest

from graphopt.compiler.environment import Environment
from graphopt.compiler.report_page import page_source
from graphopt.page.render import page_of
from graphopt.page.section import PageSource
from tests.page.browser import Browser, Misconduct
from tests.page.hostile_model import HOSTILE, hostile_model

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


def test_halves_of_surrogate_pairs_do_no_harm(browser: Browser, source: PageSource, tmp_path: Path) -> None:
    graph = source.graphs[0]
    nodes = dataclasses.replace(graph.nodes, name=[name + SURROGATE for name in graph.nodes.name])
    values = dataclasses.replace(graph.values, name=[SURROGATE + name for name in graph.values.name])
    graphs = (dataclasses.replace(graph, nodes=nodes, values=values), source.graphs[1])
    file = tmp_path / "page.html"
    file.write_bytes(page_of(dataclasses.replace(source, title=SURROGATE, graphs=graphs)))
    browser.open(file, "graph")
    assert_nothing_runs(browser)
