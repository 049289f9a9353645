"""The HTML file: escaping, the content-security policy, and determinism."""

from __future__ import annotations

import base64
import hashlib
import math

import pytest

from graphopt.page.page_data import GraphData, NodeColumns, PageData, ValueColumns
from graphopt.page.render import render
from graphopt.page.script_json import script_json
from graphopt.page.section import Section, from_template
from tests.page.page_parser import parsed

HOSTILE = "</script><script>alert(1)</script><!--<img src=x onerror=alert(1)>\u2028'\"&{{ 7 * 7 }}"


def _page(text: str) -> bytes:
    nodes = NodeColumns(name=[text], attributes=[[(text, text)]])
    graph = GraphData("original", text, nodes, ValueColumns(name=[text]), ops=[text])
    sections = [
        Section("plain", text, 10, html=text, data={text: text}),
        Section("rendered", text, 20, html=from_template("<p>{{ text }}</p>", text=text)),
    ]
    return render(PageData(text, text, [graph], sections={"plain": sections[0].data}), sections)


def test_hostile_text_adds_no_element() -> None:
    tame, hostile = parsed(_page("name")), parsed(_page(HOSTILE))
    assert [one.tag for one in hostile.elements] == [one.tag for one in tame.elements]
    assert [list(one.attributes) for one in hostile.elements] == [
        list(one.attributes) for one in tame.elements
    ]


def test_hostile_text_is_preserved() -> None:
    page = parsed(_page(HOSTILE))
    assert page.data["graphs"][0]["nodes"]["name"] == [HOSTILE]
    assert page.data["sections"] == {"plain": {HOSTILE: HOSTILE}}
    assert page.all("p")[0].text == HOSTILE
    assert page.all("title")[0].text == HOSTILE


def test_lone_surrogates_are_written_as_escapes() -> None:
    assert parsed(_page("a\ud800b")).data["title"] == "a\ud800b"


def test_the_policy_permits_one_script_and_one_style_sheet_by_hash() -> None:
    page = parsed(_page(HOSTILE))
    (script,) = [one for one in page.all("script") if one.attributes.get("type") != "application/json"]
    (style,) = page.all("style")
    digests = [
        base64.b64encode(hashlib.sha256(one.text.encode()).digest()).decode() for one in (script, style)
    ]
    assert page.policy.split("; ") == [
        "default-src 'none'",
        f"script-src 'sha256-{digests[0]}'",
        f"style-src 'sha256-{digests[1]}'",
        "img-src data:",
        "base-uri 'none'",
        "form-action 'none'",
    ]


def test_the_policy_precedes_styles_and_scripts() -> None:
    page = parsed(_page("name"))
    order = [
        one.tag for one in page.elements if one.tag in ("style", "script") or one.attributes.get("http-equiv")
    ]
    assert order == ["meta", "style", "script", "script"]


def test_no_element_loads_or_runs_anything() -> None:
    for element in parsed(_page(HOSTILE)).elements:
        assert element.tag not in ("link", "iframe", "object", "embed", "base", "form")
        for name, value in element.attributes.items():
            assert not name.startswith("on")
            assert name not in ("src", "srcset", "style", "action")
            assert name != "href" or (value or "").startswith("#")


@pytest.mark.parametrize("number", [math.nan, math.inf, -math.inf])
def test_numbers_that_are_not_finite_become_null(number: float) -> None:
    assert script_json({"a": [1.5, number], "b": (number, "NaN")}) == '{"a":[1.5,null],"b":[null,"NaN"]}'


def test_two_renderings_are_equal() -> None:
    assert _page(HOSTILE) == _page(HOSTILE)
