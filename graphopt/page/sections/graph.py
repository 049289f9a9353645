"""The graph, whose data is not that of a section but the columns of the page."""

from __future__ import annotations

from graphopt.page.section import PageSource, Section


def build(source: PageSource) -> Section | None:
    """The section of the graph; ``None`` for a page without models."""
    return Section("graph", "Graph", 20) if source.graphs else None
