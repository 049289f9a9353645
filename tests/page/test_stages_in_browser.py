"""The time line of passes on the report page in a browser."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from tests.page.browser import Browser, Misconduct
from tests.page.conftest import PageOf
from tests.page.graph_section import GraphSection
from tests.page.report_pages import MODELS

TITLE = "return document.querySelector('#stages h3').textContent"
LINES = """return [...document.querySelectorAll('#stages .diff li')]
    .map((line) => [line.querySelector('.mark').textContent, line.textContent.slice(1)])"""


def _has_changes(stage: Mapping[str, Any]) -> bool:
    return bool(stage["removed"] or stage["added"] or stage["changed"] or stage["truncated"])


def _assert_shown(browser: Browser, stage: Mapping[str, Any]) -> None:
    """The title and the differences are those of a stage."""
    assert browser.run(TITLE).startswith(f"{stage['index']} {stage['pass']}: {stage['nodes']:,} nodes, ")
    lines = browser.run(LINES)
    assert [text for mark, text in lines if mark == "−"] == list(stage["removed"])
    assert [text for mark, text in lines if mark == "~"] == list(stage["changed"])
    added = [text for mark, text in lines if mark == "+"]
    assert len(added) == len(stage["added"])
    for text, (name, op, inputs, outputs, by) in zip(added, stage["added"], strict=True):
        assert text == f"{', '.join(outputs)} = {op}({', '.join(inputs)})  {name}, by {by}"


@pytest.mark.parametrize("name", MODELS)
def test_next_and_previous_step_through_stages_with_changes(
    browser: Browser, page_of: PageOf, name: str
) -> None:
    section = GraphSection(browser, page_of(name))
    stages = section.data["stages"]
    assert browser.run(TITLE) == f"{len(stages)} passes"
    # also the first and last stage, at which stepping ends
    stops = [stage for stage in stages if _has_changes(stage) or stage in (stages[0], stages[-1])]
    assert len(stops) > 2
    for stage in stops:
        browser.driver.find_element("id", "stage-next").click()
        _assert_shown(browser, stage)
    assert browser.run("return document.getElementById('stage-next').disabled")
    for stage in reversed(stops[:-1]):
        browser.driver.find_element("id", "stage-previous").click()
        _assert_shown(browser, stage)
    browser.driver.find_element("id", "stage-previous").click()
    assert browser.run(TITLE) == f"{len(stages)} passes"
    assert browser.misconduct() == Misconduct()


def test_a_stage_outlines_its_nodes(browser: Browser, page_of: PageOf) -> None:
    section = GraphSection(browser, page_of("cnn"))
    before = section.picture(0), section.picture(1)
    stages = section.data["stages"]
    index = next(index for index, stage in enumerate(stages) if stage["removed"] and stage["added"])
    browser.driver.find_elements("css selector", "#stages .stage")[index].click()
    _assert_shown(browser, stages[index])
    assert section.picture(0) != before[0] and section.picture(1) != before[1]
    assert browser.misconduct() == Misconduct()


def test_lines_of_a_stage_lead_to_nodes(browser: Browser, page_of: PageOf) -> None:
    section = GraphSection(browser, page_of("cnn"))
    names = [set(graph["nodes"]["name"]) for graph in section.graphs]
    index, name = next(
        (index, name)
        for index, stage in enumerate(section.data["stages"])
        for name, *_ in stage["added"]
        if name in names[1] - names[0]
    )
    browser.driver.find_elements("css selector", "#stages .stage")[index].click()
    browser.run(
        "[...document.querySelectorAll('#stages .diff .added button')]"
        ".find((line) => line.textContent.includes(arguments[0])).click()",
        f"  {name}, by ",
    )
    assert section.name == name
    assert section.rows("graph") == [section.graphs[1]["label"]]
    assert browser.misconduct() == Misconduct()


def test_keys_step_through_the_stages(browser: Browser, page_of: PageOf) -> None:
    from selenium.webdriver import Keys

    stages = GraphSection(browser, page_of("quantized")).data["stages"]
    browser.run("document.querySelector('#stages .time-line').focus()")
    browser.press(Keys.END)
    _assert_shown(browser, stages[-1])
    browser.press(Keys.HOME)
    _assert_shown(browser, stages[0])
    browser.press(Keys.ARROW_RIGHT)
    changed = next(index for index, stage in enumerate(stages) if index and _has_changes(stage))
    _assert_shown(browser, stages[changed])
    browser.press(Keys.ARROW_LEFT)
    _assert_shown(browser, stages[0])
    browser.press(Keys.ESCAPE)
    assert browser.run(TITLE) == f"{len(stages)} passes"
    assert browser.misconduct() == Misconduct()


def test_a_stage_brings_its_nodes_into_view(browser: Browser, page_of: PageOf) -> None:
    GraphSection(browser, page_of("transformer"))
    names = "page.payload.stages.findIndex((stage) => stage.removed.some((name) => page.nodeByName(0, name) >= 0))"
    stage = browser.run(f"return {names}")
    browser.run("[...document.querySelectorAll('.time-line .stage')][arguments[0]].click()", stage)
    inside = """
      const nodes = page.payload.stages[arguments[0]].removed.map((name) => page.nodeByName(0, name));
      const canvas = document.querySelector("#graph-canvas-0");
      return nodes.filter((node) => node >= 0).map((node) => page.pointOf(0, node)).some(
        (point) => point && point[0] > 0 && point[1] > 0 && point[0] < canvas.clientWidth && point[1] < canvas.clientHeight);
    """
    assert browser.wait(inside, stage)
