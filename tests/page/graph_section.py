"""The section of the graph as a reader uses it: points on the canvas, search, details and stages."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tests.page.browser import Browser
from tests.page.page_parser import parsed

#: The point of a node in the window, or null if another element or the end of the canvas covers it.
_POINT = """const [graph, node] = arguments;
const canvas = document.getElementById(`graph-canvas-${graph}`);
const [x, y] = page.pointOf(graph, node), bounds = canvas.getBoundingClientRect();
const point = [bounds.left + x, bounds.top + y];
return document.elementFromPoint(...point) === canvas ? point : null;"""


class GraphSection:
    """The graph of an open page.

    Attributes:
        graphs: the graphs of its data.
        data: all of its data.
    """

    def __init__(self, browser: Browser, page: Path) -> None:
        self.browser = browser
        self.data: dict[str, Any] = parsed(page.read_bytes()).data
        self.graphs: list[dict[str, Any]] = self.data["graphs"]
        browser.open(page, "graph")
        browser.wait("return document.getElementById('details') !== null")
        self.settle()

    def settle(self) -> None:
        """Wait until the canvas is painted."""
        script = (
            "const done = arguments[0]; requestAnimationFrame(() => requestAnimationFrame(() => done()));"
        )
        self.browser.driver.execute_async_script(script)

    def point(self, graph: int, node: int) -> list[float] | None:
        return self.browser.run(_POINT, graph, node)

    def press_button(self, text: str) -> None:
        """Press a button of the toolbar."""
        self.browser.run(
            "[...document.querySelectorAll('.toolbar button')].find((one) => one.textContent === arguments[0]).click()",
            text,
        )
        self.settle()

    def fit(self) -> None:
        """Show all nodes without scopes, in their whole extent."""
        if self.browser.run("return page.graphs.some((graph) => graph.data.scopes.length > 1)"):
            self.press_button("All nodes")
        self.press_button("Fit")

    def click(self, graph: int, node: int, count: int = 1) -> None:
        point = self.point(graph, node)
        assert point is not None, f"node {node} of graph {graph} is not visible"
        self.browser.click(*point, count=count)
        self.settle()

    @property
    def heading(self) -> str | None:
        """The heading of the details: the operator, or the kind of the value or scope."""
        return self.browser.run("return document.querySelector('#details h3')?.textContent")

    @property
    def name(self) -> str | None:
        """The name of the item whose details are shown."""
        return self.browser.run("return document.querySelector('#details .full-name')?.textContent")

    def rows(self, term: str) -> list[str]:
        """The texts of the rows of the details with this term."""
        return self.browser.run(
            "return [...document.querySelectorAll('#details dt')].filter((one) => one.textContent === arguments[0])"
            ".map((one) => one.nextElementSibling.textContent)",
            term,
        )

    def follow(self, term: str, position: int = 0) -> str:
        """Click a link in the row of the details with this term; its text."""
        text = self.browser.run(
            "const row = [...document.querySelectorAll('#details dt')].find((one) => one.textContent === arguments[0]);"
            "const link = row.nextElementSibling.querySelectorAll('button')[arguments[1]];"
            "const text = link.textContent; link.click(); return text",
            term,
            position,
        )
        self.settle()
        return text

    def search(self, query: str) -> list[tuple[str, str]]:
        """Type a query; the operators and names of the listed matches."""
        field = self.browser.driver.find_element("id", "search")
        field.clear()
        field.send_keys(query)
        # the page searches in a timer of 60 ms after the last key; timers expire in order
        self.browser.driver.execute_async_script("setTimeout(arguments[0], 100)")
        rows = self.browser.run(
            "return [...document.querySelectorAll('#search-results li')]"
            ".map((row) => ['.result-op', '.result-name'].map((part) => row.querySelector(part).textContent))"
        )
        return [(op, name) for op, name in rows]

    def picture(self, graph: int = 0) -> str:
        """The pixels of a canvas, for comparisons."""
        self.settle()
        return self.browser.run(
            "return document.getElementById(`graph-canvas-${arguments[0]}`).toDataURL()", graph
        )
