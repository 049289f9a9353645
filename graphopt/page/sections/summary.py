"""The summary: figures before and after, verdict, passes, environment, and the command to repeat it."""

from __future__ import annotations

import platform
from collections.abc import Iterator

import onnx
import onnxruntime

import graphopt
from graphopt.instrument.model_summary import Summary
from graphopt.page.block_html import html_of_blocks
from graphopt.page.graph_relations import relation_line
from graphopt.page.section import PageSource, Section
from graphopt.util.text_tables import Block, Line, Table, human_bytes, human_count

#: Number of operators that the table lists.
_LISTED = 30


def build(source: PageSource) -> Section | None:
    """The section; ``None`` for a page without models."""
    return Section("summary", "Summary", 10, html_of_blocks(_blocks(source))) if source.models else None


def _blocks(source: PageSource) -> Iterator[Block]:
    if source.report is not None:
        yield Line(source.report.headline(), "title")
        yield from source.report.blocks(2)  # a page has no -vv
    else:
        yield _operators(source)
        if len(source.graphs) == 2:
            yield relation_line(*source.graphs)
    if source.command:
        yield Line("Command", "title")
        yield source.command
    yield Line("Environment", "title")
    yield (
        f"graphopt {graphopt.__version__}, onnx {onnx.__version__}, onnxruntime {onnxruntime.__version__},"
        f" Python {platform.python_version()}, {platform.system()} {platform.machine()}"
    )


def _operators(source: PageSource) -> Table:
    """Sizes and operators of the models, side by side."""
    summaries = [Summary.of(model) for model in source.models]
    table = Table(["", *(graph.label for graph in source.graphs)], "<" + ">" * len(summaries))
    table.add("nodes", *(human_count(one.nodes) for one in summaries))
    table.add("parameters", *(human_count(one.parameters) for one in summaries))
    table.add("weights", *(human_bytes(one.weight_bytes) for one in summaries))
    names = dict.fromkeys(name for one in summaries for name in one.ops)
    for name in list(names)[:_LISTED]:
        table.add(name, *(human_count(one.ops.get(name, 0)) for one in summaries))
    if len(names) > _LISTED:
        table.add(f"{len(names) - _LISTED:,} other operators", *([""] * len(summaries)))
    return table
