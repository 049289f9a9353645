"""Bars of latencies as SVG."""

from __future__ import annotations

from collections.abc import Sequence
from xml.sax.saxutils import escape

from graphopt.util.lazy_dataclass import dataclass

_LABELS, _BARS, _VALUES = 170, 420, 170
_ROW, _BAR, _HEAD = 26, 16, 34
_COLOURS = {"faster": "#2b8a3e", "slower": "#c92a2a"}
_PLAIN, _BASE = "#868e96", "#364fc7"


@dataclass(frozen=True)
class Bar:
    """One model: its name, milliseconds at the 50th and 90th percentile, and a remark about it."""

    name: str
    p50: float
    p90: float
    note: str
    conclusion: str | None


def bars(groups: Sequence[tuple[str, Sequence[Bar]]]) -> str:
    """An SVG document: a group of bars under each title; a thin line reaches to the 90th percentile."""
    height = sum(_HEAD + _ROW * len(group) for _, group in groups) + 12
    width = _LABELS + _BARS + _VALUES
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" '
        f'viewBox="0 0 {width} {height}" font-family="sans-serif" font-size="12">',
        '<rect width="100%" height="100%" fill="white"/>',
    ]
    top = 0
    for title, group in groups:
        parts.append(f'<text x="12" y="{top + 22}" font-weight="bold">{escape(title)}</text>')
        top += _HEAD
        longest = max((bar.p90 for bar in group), default=1.0) or 1.0
        for bar in group:
            parts += _draw(bar, top, _BARS / longest)
            top += _ROW
    return "\n".join([*parts, "</svg>"]) + "\n"


def _draw(bar: Bar, top: int, scale: float) -> list[str]:
    length, reach, middle = bar.p50 * scale, bar.p90 * scale, top + _BAR / 2
    colour = _BASE if bar.conclusion is None else _COLOURS.get(bar.conclusion, _PLAIN)
    end = _LABELS + max(length, reach)
    return [
        f'<text x="{_LABELS - 8}" y="{top + 12}" text-anchor="end">{escape(bar.name)}</text>',
        f'<rect x="{_LABELS}" y="{top}" width="{length:.1f}" height="{_BAR}" fill="{colour}"/>',
        f'<line x1="{_LABELS + length:.1f}" y1="{middle}" x2="{_LABELS + reach:.1f}" y2="{middle}" '
        'stroke="#495057"/>',
        f'<text x="{end + 6:.1f}" y="{top + 12}">{escape(f"{bar.p50:.3g} ms {bar.note}".strip())}</text>',
    ]
