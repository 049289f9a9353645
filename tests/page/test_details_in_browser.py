"""The details of nodes, values and scopes on the report page in a browser."""

from __future__ import annotations

from tests.page.browser import Browser, Misconduct
from tests.page.conftest import PageOf
from tests.page.graph_section import GraphSection


def test_attributes_and_types(browser: Browser, page_of: PageOf) -> None:
    section = GraphSection(browser, page_of("cnn"))
    graph = section.graphs[1]
    node = next(node for node, op in enumerate(graph["nodes"]["op"]) if graph["ops"][op] == "Conv")
    browser.run("page.select({graph: 1, node: arguments[0]})", node)
    attributes = dict(graph["nodes"]["attributes"][node])
    assert attributes
    for key, text in attributes.items():
        assert section.rows(key) == [text]
    (reads,), (computes,) = section.rows("reads"), section.rows("computes")
    values = graph["values"]
    for value in graph["nodes"]["inputs"][node]:
        assert values["name"][value] in reads and values["type"][value] in reads
    (result,) = graph["nodes"]["outputs"][node]
    assert values["name"][result] in computes and values["type"][result] in computes
    assert section.rows("device") == ["CPU"]
    assert browser.misconduct() == Misconduct()


def test_statistics_of_constants(browser: Browser, page_of: PageOf) -> None:
    section = GraphSection(browser, page_of("cnn"))
    values = section.graphs[0]["values"]
    constant = next(value for value, text in enumerate(values["stats"]) if text)
    browser.run("page.select({graph: 0, value: arguments[0]})", constant)
    assert (section.heading, section.name) == ("initializer", values["name"][constant])
    assert section.rows("contents") == [values["stats"][constant]]
    assert browser.misconduct() == Misconduct()


def test_links_lead_from_a_node_to_its_values_and_their_readers(browser: Browser, page_of: PageOf) -> None:
    section = GraphSection(browser, page_of("transformer"))
    nodes, values = (section.graphs[0][key] for key in ("nodes", "values"))
    read = [value for inputs in nodes["inputs"] for value in inputs]
    node = next(node for node, (value, *_) in enumerate(nodes["outputs"]) if read.count(value) > 1)
    (value,) = nodes["outputs"][node]
    browser.run("page.select({graph: 0, node: arguments[0]})", node)
    assert section.follow("computes") == section.name == values["name"][value]
    assert section.rows("type") == [values["type"][value] or "unknown"]
    readers = [reader for reader, inputs in enumerate(nodes["inputs"]) if value in inputs]
    (text,) = section.rows("read by")
    assert all(nodes["name"][reader] in text for reader in readers)
    assert section.follow("computed by") == section.name == nodes["name"][node]
    assert browser.misconduct() == Misconduct()


def test_lineage_leads_to_the_other_graph_and_back(browser: Browser, page_of: PageOf) -> None:
    section = GraphSection(browser, page_of("cnn"))
    original, result = section.graphs
    fused = next(node for node, related in enumerate(result["nodes"]["related"]) if len(related) > 1)
    browser.run("page.select({graph: 1, node: arguments[0]})", fused)
    maker = section.data["makers"][result["nodes"]["by"][fused]]
    assert section.rows("change") == [f"created by {maker}"]
    (text,) = section.rows("from")
    names = [original["nodes"]["name"][node] for node in result["nodes"]["related"][fused]]
    assert all(name in text for name in names)
    assert section.follow("from") == section.name == names[0]
    assert section.rows("graph") == [original["label"]]
    assert section.follow("in the result") == result["nodes"]["name"][fused]
    assert section.rows("graph") == [result["label"]]
    assert browser.misconduct() == Misconduct()


def test_reasons_why_a_node_was_not_rewritten(browser: Browser, page_of: PageOf) -> None:
    section = GraphSection(browser, page_of("transformer"))
    graph, notes = next(
        (position, notes)
        for position, graph in enumerate(section.graphs)
        if any(notes := graph["nodes"]["notes"])
    )
    node = next(node for node, reasons in enumerate(notes) if reasons)
    browser.run("page.select({graph: arguments[0], node: arguments[1]})", graph, node)
    assert section.rows("reason") == notes[node]
    assert browser.misconduct() == Misconduct()
