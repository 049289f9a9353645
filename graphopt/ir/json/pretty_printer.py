"""Lay out a document for people: short items are on one line, long lists of numbers are wrapped."""

from __future__ import annotations

import json
from typing import Any

_WIDTH = 110
_INDENT = "  "

_quoted = json.encoder.encode_basestring


def render(document: Any) -> str:
    """``document`` as JSON, ending in a newline.

    The recursion depth is the nesting depth of bodies, which is limited.
    """
    return _render(document, "", _WIDTH) + "\n"


def _render(item: Any, margin: str, room: int) -> str:
    """``item``; the first line has ``room`` columns, and further lines start at column ``margin``."""
    if isinstance(item, dict):
        if not item:
            return "{}"
        inner = margin + _INDENT
        parts = []
        for key, value in item.items():
            start = f"{_quoted(key)}: "
            parts.append(start + _render(value, inner, _WIDTH - len(inner) - len(start)))
        return _joined(parts, "{}", margin, room)
    if isinstance(item, list):
        if not item:
            return "[]"
        inner = margin + _INDENT
        if isinstance(item[0], (dict, list)):
            parts = [_render(value, inner, _WIDTH - len(inner)) for value in item]
            return _joined(parts, "[]", margin, room)
        return _wrapped([_scalar(value) for value in item], margin, room)
    return _scalar(item)


def _scalar(item: Any) -> str:
    if isinstance(item, str):
        return _quoted(item)
    if isinstance(item, bool) or item is None:
        return {True: "true", False: "false", None: "null"}[item]
    if isinstance(item, (int, float)):
        return repr(item)
    return json.dumps(item, ensure_ascii=False)


def _joined(parts: list[str], brackets: str, margin: str, room: int) -> str:
    if sum(map(len, parts)) + 2 * len(parts) <= room and not any("\n" in part for part in parts):
        return brackets[0] + ", ".join(parts) + brackets[1]
    inner = margin + _INDENT
    return f"{brackets[0]}\n{inner}" + f",\n{inner}".join(parts) + f"\n{margin}{brackets[1]}"


def _wrapped(parts: list[str], margin: str, room: int) -> str:
    if sum(map(len, parts)) + 2 * len(parts) <= room:
        return f"[{', '.join(parts)}]"
    inner = margin + _INDENT
    lines, line = [], ""
    for part in parts:
        if line and len(inner) + len(line) + len(part) + 3 > _WIDTH:
            lines.append(line)
            line = part
        else:
            line = f"{line}, {part}" if line else part
    lines.append(line)
    return f"[\n{inner}" + f",\n{inner}".join(lines) + f"\n{margin}]"
