"""layout: choose the layout of tensors over the whole graph."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import ClassVar

from graphopt import ir
from graphopt.context import Context
from graphopt.passes.base import Pass
from graphopt.rewrite.matcher import Match
from graphopt.transforms.layout._choose_layouts import choose_layouts
from graphopt.transforms.layout._control_flow import exchange_sites
from graphopt.transforms.layout._dataflow import NAME, Dataflow, Site, node_site
from graphopt.transforms.layout._operators import same_rank_operator
from graphopt.transforms.layout._quantized_units import keep_quantized_units
from graphopt.transforms.layout._views import view_operator
from graphopt.transforms.layout._write_layouts import write_layouts

#: The opset version from which the operators broadcast like numpy.
_SINCE = 7


@dataclass(frozen=True)
class Layout(Pass):
    """Choose the layout of all tensors, so that the fewest bytes are transposed."""

    name: ClassVar[str] = NAME
    for_speed: ClassVar[bool] = True

    def run(self, model: ir.Model, cx: Context) -> None:
        """Choose and write the layouts of the main graph with its bodies, and of each function."""
        for graph in [model.graph, *(function.graph for function in model.functions.values())]:
            if ir.standard_version(cx.edit.scopes.imports(graph)) < _SINCE or not _has_transposes(graph):
                continue
            flow = Dataflow.of(graph, cx, lambda node: _sites(node, cx))
            keep_quantized_units(flow)
            write_layouts(choose_layouts(flow), cx)


def _has_transposes(graph: ir.Graph) -> bool:
    return any(node.op_type == "Transpose" and node.domain == "" for node in ir.walk_nodes(graph))


def _sites(node: ir.Node, cx: Context) -> Iterable[Site]:
    if node.op_type in ("If", "Loop", "Scan") and node.domain == "":
        yield from exchange_sites(node, cx)
        return
    m = Match(NAME, node, {}, cx)
    site = node_site(node, same_rank_operator(m, node), cx) or node_site(node, view_operator(m, node), cx)
    if site is not None:
        yield site
