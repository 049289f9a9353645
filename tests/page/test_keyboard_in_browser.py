"""The report page in a browser with the keyboard only."""

from __future__ import annotations

from tests.page.browser import Browser, Misconduct
from tests.page.conftest import PageOf
from tests.page.graph_section import GraphSection

FOCUSED = "return document.activeElement.id || document.activeElement.textContent"


def _tab_to(browser: Browser, target: str) -> list[str]:
    """Press Tab until the element with the identifier ``target`` has the focus; the elements before it."""
    from selenium.webdriver import Keys

    passed: list[str] = []
    while (focused := browser.run(FOCUSED)) != target:
        passed.append(focused)
        assert len(passed) < 60, passed
        browser.press(Keys.TAB)
    return passed


def test_tab_reaches_each_part_of_the_graph_in_order(browser: Browser, page_of: PageOf) -> None:
    GraphSection(browser, page_of("transformer"))
    browser.run("document.activeElement.blur()")
    parts = ["tab-graph", "search", "coloring", "sides", "graph-canvas-0", "graph-canvas-1", "stage-next"]
    for part in parts:
        _tab_to(browser, part)
    outline = "return getComputedStyle(document.activeElement).outlineStyle"
    assert browser.run(outline) != "none"
    assert browser.misconduct() == Misconduct()


def test_arrows_follow_edges(browser: Browser, page_of: PageOf) -> None:
    from selenium.webdriver import Keys

    section = GraphSection(browser, page_of("cnn"))
    nodes, values = (section.graphs[0][key] for key in ("nodes", "values"))
    _tab_to(browser, "graph-canvas-0")
    browser.press(Keys.HOME)
    assert (section.heading, section.name) == ("input", "image")
    browser.press(Keys.ARROW_DOWN)
    first = nodes["name"].index(section.name)
    assert any(values["name"][value] == "image" for value in nodes["inputs"][first] if value >= 0)
    browser.press(Keys.ARROW_DOWN)
    second = nodes["name"].index(section.name)
    assert set(nodes["outputs"][first]) & set(nodes["inputs"][second])
    browser.press(Keys.ARROW_UP)
    assert section.name == nodes["name"][first]
    browser.press(Keys.END)
    assert section.heading == "output"
    browser.press(Keys.ESCAPE)
    assert section.name is None
    assert browser.misconduct() == Misconduct()


def test_left_and_right_move_in_a_layer(browser: Browser, page_of: PageOf) -> None:
    from selenium.webdriver import Keys

    section = GraphSection(browser, page_of("transformer"))
    _tab_to(browser, "graph-canvas-0")
    browser.press(Keys.HOME)
    seen = [section.name]
    for _ in range(40):
        browser.press(Keys.ARROW_RIGHT)
        if section.name != seen[-1]:
            seen.append(section.name)
            break
        browser.press(Keys.ARROW_DOWN)
        seen.append(section.name)
    else:
        raise AssertionError(f"no layer has two nodes: {seen}")
    browser.press(Keys.ARROW_LEFT)
    assert section.name == seen[-2]
    assert browser.misconduct() == Misconduct()


def test_enter_expands_and_collapses_a_scope(browser: Browser, page_of: PageOf) -> None:
    from selenium.webdriver import Keys

    section = GraphSection(browser, page_of("transformer"))
    section.press_button("Scopes")
    scope = next(scope for scope in section.graphs[0]["nodes"]["scope"] if scope > 0)
    members = [node for node, inside in enumerate(section.graphs[0]["nodes"]["scope"]) if inside == scope]
    assert len(members) > 1
    browser.run("page.select({graph: 0, scope: arguments[0]})", scope)
    browser.run("document.getElementById('graph-canvas-0').focus()")
    points = "return new Set(arguments[0].map((node) => String(page.pointOf(0, node)))).size"
    assert browser.run(points, members) == 1
    browser.press(Keys.ENTER)
    assert browser.run(points, members) > 1
    browser.press(Keys.ENTER)
    assert browser.run(points, members) == 1
    assert browser.misconduct() == Misconduct()


def test_backspace_leaves_a_node_for_its_scope(browser: Browser, page_of: PageOf) -> None:
    from selenium.webdriver import Keys

    section = GraphSection(browser, page_of("transformer"))
    section.press_button("Expand")
    scopes, nodes = (section.graphs[0][key] for key in ("scopes", "nodes"))
    node = next(node for node, scope in enumerate(nodes["scope"]) if scope > 0)
    browser.run("page.select({graph: 0, node: arguments[0]})", node)
    browser.run("document.getElementById('graph-canvas-0').focus()")
    browser.press(Keys.BACKSPACE)
    scope = scopes[nodes["scope"][node]]
    assert section.heading == scope["kind"]
    assert section.name is not None and section.name.endswith(scope["name"])
    assert browser.misconduct() == Misconduct()


def test_slash_focuses_the_search(browser: Browser, page_of: PageOf) -> None:
    section = GraphSection(browser, page_of("cnn"))
    browser.press("/")
    assert browser.run(FOCUSED) == "search"
    browser.press("/")  # in the field, a slash is a slash
    assert browser.run("return document.getElementById('search').value") == "/"
    assert section.name is None
    assert browser.misconduct() == Misconduct()


def test_keys_zoom_and_fit(browser: Browser, page_of: PageOf) -> None:
    section = GraphSection(browser, page_of("cnn"))
    distance = "return page.pointOf(0, 1)[1] - page.pointOf(0, 0)[1]"
    _tab_to(browser, "graph-canvas-0")
    browser.press("0")
    section.settle()
    whole = browser.run(distance)
    browser.press("+")
    assert browser.run(distance) > whole
    browser.press("-", "-")
    assert browser.run(distance) < whole
    browser.press("0")
    section.settle()
    assert abs(browser.run(distance) - whole) < 0.01
    assert browser.misconduct() == Misconduct()
