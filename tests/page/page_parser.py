"""The contents of a page as a browser parses it."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from html.parser import HTMLParser
from typing import Any


@dataclass
class Element:
    """An element with its attributes and the text directly inside it."""

    tag: str
    attributes: dict[str, str | None]
    text: str = ""


@dataclass
class ParsedPage:
    """All elements of a page, in order."""

    elements: list[Element] = field(default_factory=list)

    def all(self, tag: str) -> list[Element]:
        return [one for one in self.elements if one.tag == tag]

    @property
    def data(self) -> dict[str, Any]:
        (found,) = [one for one in self.all("script") if one.attributes.get("id") == "data"]
        return json.loads(found.text)

    @property
    def policy(self) -> str:
        (found,) = [one for one in self.all("meta") if one.attributes.get("http-equiv")]
        return found.attributes["content"] or ""


class _Parser(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.page = ParsedPage()
        self._open: list[Element] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        element = Element(tag, dict(attrs))
        self.page.elements.append(element)
        if tag not in ("meta", "br", "img", "input", "link", "hr"):
            self._open.append(element)

    def handle_endtag(self, tag: str) -> None:
        while self._open and self._open.pop().tag != tag:
            pass

    def handle_data(self, data: str) -> None:
        if self._open:
            self._open[-1].text += data


def parsed(page: bytes) -> ParsedPage:
    """Parse ``page``."""
    parser = _Parser()
    parser.feed(page.decode())
    parser.close()
    return parser.page
