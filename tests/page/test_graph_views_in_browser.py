"""The views of the graph on the report page in a browser: scopes, camera, colours, and both sides."""

from __future__ import annotations

from pathlib import Path

import pytest

from graphopt.compiler.environment import Environment
from graphopt.compiler.page_source import page_source
from graphopt.page.render import page_of as rendered
from tests.page.browser import Browser, Misconduct
from tests.page.conftest import PageOf
from tests.page.graph_section import GraphSection
from zoo import SAMPLES


def test_scopes_expand_and_collapse(browser: Browser, page_of: PageOf) -> None:
    section = GraphSection(browser, page_of("transformer"))
    section.press_button("Scopes")
    section.press_button("Fit")
    scopes = section.graphs[0]["scopes"]
    node = next(node for node, scope in enumerate(section.graphs[0]["nodes"]["scope"]) if scope > 0)
    other = next(
        other
        for other in range(node + 1, len(section.graphs[0]["nodes"]["scope"]))
        if section.graphs[0]["nodes"]["scope"][other] == section.graphs[0]["nodes"]["scope"][node]
    )
    assert section.point(0, node) == section.point(0, other)
    section.click(0, node)
    assert section.heading in {scope["kind"] for scope in scopes}
    section.press_button("Expand")
    section.press_button("Fit")
    assert section.point(0, node) != section.point(0, other)
    section.click(0, node)
    assert section.name == section.graphs[0]["nodes"]["name"][node]
    assert browser.misconduct() == Misconduct()


def test_a_double_click_expands_a_scope(browser: Browser, page_of: PageOf) -> None:
    section = GraphSection(browser, page_of("transformer"))
    section.press_button("Scopes")
    section.press_button("Fit")
    boxes = (
        "return new Set(page.graphs[0].data.nodes.name.map((_, node) => String(page.pointOf(0, node)))).size"
    )
    collapsed = browser.run(boxes)
    node = next(node for node, scope in enumerate(section.graphs[0]["nodes"]["scope"]) if scope > 0)
    section.click(0, node, count=2)
    assert browser.run(boxes) > collapsed
    assert browser.misconduct() == Misconduct()


def test_drag_and_wheel_move_the_graph(browser: Browser, page_of: PageOf) -> None:
    section = GraphSection(browser, page_of("cnn"))
    before = browser.run("return page.pointOf(0, 0)")
    x, y = browser.run(
        "const box = document.getElementById('graph-canvas-0').getBoundingClientRect();"
        "return [box.left + 40, box.bottom - 40]"
    )
    mouse = {"button": "left", "clickCount": 1}
    for kind, dx, dy in (("mousePressed", 0, 0), ("mouseMoved", 30, 20), ("mouseReleased", 30, 20)):
        event = {**mouse, "type": kind, "x": x + dx, "y": y + dy}
        browser.driver.execute_cdp_cmd("Input.dispatchMouseEvent", event)
    assert browser.run("return page.pointOf(0, 0)") == pytest.approx([before[0] + 30, before[1] + 20])
    assert section.name is None  # a drag selects nothing
    section.press_button("+")
    distance = "return page.pointOf(0, 1)[1] - page.pointOf(0, 0)[1]"
    near = browser.run(distance)
    wheel = {"type": "mouseWheel", "x": x, "y": y, "deltaX": 0, "deltaY": 100, "modifiers": 2}
    browser.driver.execute_cdp_cmd("Input.dispatchMouseEvent", wheel)
    browser.wait(f"{distance.replace('return', 'return (')}) < arguments[0]", near)
    assert browser.misconduct() == Misconduct()


def test_colours_change_with_the_choice(browser: Browser, page_of: PageOf) -> None:
    section = GraphSection(browser, page_of("cnn"))
    legend = "return [...document.querySelectorAll('#legend li')].map((one) => one.textContent)"
    options = browser.run("return [...document.getElementById('coloring').options].map((one) => one.value)")
    assert {"fate", "maker", "operator", "device", "none"} <= set(options)
    pictures, legends = set(), {}
    for option in options:
        browser.run(
            "const select = document.getElementById('coloring'); select.value = arguments[0];"
            "select.dispatchEvent(new Event('change'))",
            option,
        )
        pictures.add(section.picture())
        legends[option] = browser.run(legend)
    assert len(pictures) > 3
    assert any("Conv" in text for text in legends["operator"])
    assert legends["none"] == []
    makers = {maker for maker in section.data["makers"] if any(maker in text for text in legends["maker"])}
    assert makers
    assert browser.misconduct() == Misconduct()


def test_one_side_is_shown_alone(browser: Browser, page_of: PageOf) -> None:
    GraphSection(browser, page_of("cnn"))
    visible = "return [0, 1].map((index) => document.getElementById(`graph-canvas-${index}`).getBoundingClientRect().width > 0)"
    assert browser.run(visible) == [True, True]
    for side in (0, 1):
        browser.run(
            "const select = document.getElementById('sides'); select.value = arguments[0];"
            "select.dispatchEvent(new Event('change'))",
            str(side),
        )
        assert browser.run(visible) == [side == 0, side == 1]
    assert browser.misconduct() == Misconduct()


def test_the_graph_is_painted_for_light_and_dark(browser: Browser, page_of: PageOf) -> None:
    section = GraphSection(browser, page_of("cnn"))
    light = section.picture()
    with browser.media("dark"):
        dark = section.picture()
    assert light != dark
    assert section.picture() == light
    browser.run("document.querySelector('button.theme').click()")
    assert section.picture() == dark
    assert browser.misconduct() == Misconduct()


def test_selection_is_outlined_in_both_graphs(browser: Browser, page_of: PageOf) -> None:
    section = GraphSection(browser, page_of("cnn"))
    before = section.picture(0), section.picture(1)
    related = section.graphs[0]["nodes"]["related"]
    node = next(node for node, others in enumerate(related) if others)
    browser.run("page.select({graph: 0, node: arguments[0]})", node)
    assert section.picture(0) != before[0] and section.picture(1) != before[1]
    assert browser.misconduct() == Misconduct()


@pytest.mark.parametrize(
    ("labels", "shown"),
    [
        (("models/net.onnx", "result"), ["net.onnx", "result"]),
        (("old/v1/net.onnx", "new/v1/net.onnx"), ["old/v1/net.onnx", "new/v1/net.onnx"]),
        (("a/old/net.onnx", "a/new/net.onnx"), ["old/net.onnx", "new/net.onnx"]),
    ],
)
def test_models_have_the_shortest_names_that_tell_them_apart(
    browser: Browser, tmp_path: Path, labels: tuple[str, str], shown: list[str]
) -> None:
    page = tmp_path / "page.html"
    model = SAMPLES["cnn"].build()
    page.write_bytes(rendered(page_source(Environment(), model, model, labels)))
    section = GraphSection(browser, page)
    names = "return [...document.querySelectorAll(arguments[0])].map((one) => one.textContent)"
    assert browser.run(names, ".graph-label strong") == shown
    assert browser.run(names, "#sides option") == ["side by side", *shown]
    browser.run("page.select({graph: 0, node: 0})")
    assert section.rows("graph") == [labels[0]]
