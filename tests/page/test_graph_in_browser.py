"""The graph of the report page in a browser: clicks, details, search and colours."""

from __future__ import annotations

import pytest

from tests.page.browser import Browser, Misconduct
from tests.page.conftest import PageOf
from tests.page.graph_section import GraphSection
from tests.page.report_pages import MODELS


@pytest.mark.parametrize("name", MODELS)
def test_a_click_shows_the_details_of_a_node(browser: Browser, page_of: PageOf, name: str) -> None:
    section = GraphSection(browser, page_of(name))
    section.fit()
    for position, graph in enumerate(section.graphs):
        count = len(graph["nodes"]["name"])
        clicked = 0
        for node in range(0, count, -(-count // 8)):
            if section.point(position, node) is None:  # behind the overview
                continue
            section.click(position, node)
            assert section.name == graph["nodes"]["name"][node]
            assert section.heading == graph["ops"][graph["nodes"]["op"][node]]
            clicked += 1
            section.fit()
        assert clicked > min(count, 8) / 2
    assert browser.misconduct() == Misconduct()


@pytest.mark.parametrize("name", MODELS)
def test_search_finds_nodes_by_name_operator_value_and_rule(
    browser: Browser, page_of: PageOf, name: str
) -> None:
    section = GraphSection(browser, page_of(name))
    makers = section.data["makers"]
    rows = [
        (
            graph["ops"][graph["nodes"]["op"][node]],
            graph["nodes"]["name"][node],
            [graph["values"]["name"][value] for value in graph["nodes"]["outputs"][node]],
            makers[graph["nodes"]["by"][node]] if graph["nodes"]["by"][node] >= 0 else "",
        )
        for graph in section.graphs
        for node in range(len(graph["nodes"]["name"]))
    ]
    op, node, values, _ = rows[len(rows) // 3]
    rule = next(rule for *_, rule in rows if rule)
    for query, expected in (
        (f"name:{node}", [row[:2] for row in rows if node.lower() in row[1].lower()]),
        (f"op:{op}", [row[:2] for row in rows if op.lower() in row[0].lower()]),
        (f"rule:{rule}", [row[:2] for row in rows if rule.lower() in row[3].lower()]),
    ):
        assert sorted(section.search(query)) == sorted(expected), query
    assert (op, node) in section.search(f"value:{values[0]}")
    assert (op, node) in section.search(node.upper())
    assert section.search("no-such-node") == []
    assert browser.misconduct() == Misconduct()


def test_enter_selects_the_first_match(browser: Browser, page_of: PageOf) -> None:
    from selenium.webdriver import Keys

    section = GraphSection(browser, page_of("cnn"))
    (first, second, *_) = section.search("op:relu")
    browser.press(Keys.ENTER)
    assert (section.heading, section.name) == first
    browser.press(Keys.ARROW_DOWN, Keys.ARROW_DOWN, Keys.ENTER)
    assert (section.heading, section.name) == second
    browser.press(Keys.ESCAPE)
    assert browser.run("return document.getElementById('search').value") == ""
    assert browser.misconduct() == Misconduct()
