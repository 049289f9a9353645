"""Pages of ``graphopt report`` in a browser: opening, sections, colour schemes, and printing."""

from __future__ import annotations

import base64

import pytest

from tests.page.browser import Browser, Misconduct
from tests.page.conftest import PageOf
from tests.page.page_parser import parsed
from tests.page.report_pages import MODELS

SHOWN = """return [...document.querySelectorAll("main > section")]
    .filter((section) => section.getBoundingClientRect().height > 0).map((section) => section.dataset.name)"""
#: The luminance of the page and of its text, from 0 to 255.
LUMINANCE = """const style = getComputedStyle(document.body);
return [style.backgroundColor, style.color].map((color) => {
  const [red, green, blue] = color.match(/[\\d.]+/g).map(Number);
  return 0.2126 * red + 0.7152 * green + 0.0722 * blue;
})"""


def sections(browser: Browser) -> list[str]:
    return browser.run(
        "return [...document.querySelectorAll('main > section')].map((one) => one.dataset.name)"
    )


@pytest.mark.parametrize("name", MODELS)
def test_all_sections_open_without_errors_or_requests(browser: Browser, page_of: PageOf, name: str) -> None:
    browser.open(page_of(name))
    browser.wait("return performance.getEntriesByName('interactive').length")
    found = sections(browser)
    assert found[:2] == ["summary", "graph"]
    for section in found:
        browser.run("document.getElementById(`tab-${arguments[0]}`).click()", section)
        browser.wait("return document.body.dataset.section === arguments[0]", section)
        assert browser.run(SHOWN) == [section]
    assert browser.misconduct() == Misconduct()
    assert browser.run("return performance.getEntriesByType('resource').length") == 0


@pytest.mark.parametrize("name", MODELS)
def test_pages_of_small_models_are_small(page_of: PageOf, name: str) -> None:
    page = page_of(name).read_bytes()
    nodes = sum(len(graph["nodes"]["name"]) for graph in parsed(page).data["graphs"])
    assert len(page) <= 6e6 + 1e3 * nodes


def test_the_address_selects_a_section(browser: Browser, page_of: PageOf) -> None:
    browser.open(page_of("cnn"), "graph")
    assert browser.run(SHOWN) == ["graph"]
    browser.open(page_of("cnn"), "unknown")
    assert browser.run(SHOWN) == ["summary"]


def test_back_returns_to_the_previous_section(browser: Browser, page_of: PageOf) -> None:
    browser.open(page_of("cnn"))
    browser.run("document.getElementById('tab-graph').click()")
    browser.wait("return document.body.dataset.section === 'graph'")
    browser.run("history.back()")
    browser.wait("return document.body.dataset.section === 'summary'")


def test_arrow_keys_move_between_tabs(browser: Browser, page_of: PageOf) -> None:
    from selenium.webdriver import Keys

    browser.open(page_of("cnn"))
    browser.run("document.getElementById('tab-summary').focus()")
    browser.press(Keys.ARROW_RIGHT)
    browser.wait("return document.body.dataset.section === 'graph'")
    assert browser.run("return document.activeElement.id") == "tab-graph"
    browser.press(Keys.ARROW_LEFT)
    browser.wait("return document.body.dataset.section === 'summary'")


def test_colours_follow_the_scheme_of_the_system(browser: Browser, page_of: PageOf) -> None:
    browser.open(page_of("cnn"))
    background, text = browser.run(LUMINANCE)
    assert background > 200 and text < 80
    with browser.media("dark"):
        background, text = browser.run(LUMINANCE)
        assert background < 80 and text > 160


def test_print_shows_all_sections(browser: Browser, page_of: PageOf) -> None:
    browser.open(page_of("cnn"))
    assert browser.run(SHOWN) == ["summary"]
    document = browser.driver.execute_cdp_cmd("Page.printToPDF", {"printBackground": True})
    assert base64.b64decode(document["data"]).startswith(b"%PDF")
    with browser.media(medium="print"):
        assert browser.run(SHOWN) == sections(browser)
    assert browser.run(SHOWN) == ["summary"]
    assert browser.misconduct() == Misconduct()
