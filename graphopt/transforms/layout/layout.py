"""layout: choose the layout of tensors over the whole graph."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import ClassVar

from graphopt import ir
from graphopt.context import Context, Refusal
from graphopt.numerics import Numerics
from graphopt.ort.gpu_properties import gpu_properties, matrix_units
from graphopt.passes.base import Pass
from graphopt.rewrite.match import Match
from graphopt.transforms.layout._channels_last_operators import channels_last_operator, is_convolution
from graphopt.transforms.layout._choose_layouts import choose_layouts
from graphopt.transforms.layout._control_flow import exchange_sites
from graphopt.transforms.layout._dataflow import NAME, Dataflow, Site, node_site
from graphopt.transforms.layout._decide_layout import ConvolutionFacts, LayoutDecision, decide_layout
from graphopt.transforms.layout._quantized_units import keep_quantized_units
from graphopt.transforms.layout._same_rank_operators import same_rank_operator
from graphopt.transforms.layout._view_operators import view_operator
from graphopt.transforms.layout._write_layouts import write_layouts
from graphopt.util.lazy_dataclass import dataclass

#: The opset version from which operators broadcast like numpy.
_SINCE = 7
#: Maximum number of times that layouts are chosen: views between Transposes may hide further ones.
_ROUNDS = 3
#: The preference of convolutions for the channels last if it is requested, in bytes.
_FORCED = 1 << 60


@dataclass(frozen=True)
class Layout(Pass):
    """Choose the layout of tensors over the whole graph, so that the fewest bytes are transposed.

    Transposes are moved through operators, bodies and iterations, and cancelled, where the total number of
    transposed bytes decreases. On a GPU, convolutions with their surroundings run with the channels last
    where onnxruntime has such kernels and a gain is predicted. docs/layout.md has the rules and figures.

    Modelled on the layout optimization of Inductor's freezing.

    Attributes:
        convolutions: also decide the layout of convolutions.
        force: run convolutions with the channels last wherever the target has kernels.
    """

    name: ClassVar[str] = NAME
    for_speed: ClassVar[bool] = True
    tags: ClassVar[tuple[str, ...]] = ("onnxruntime:TransposeOptimizer",)
    convolutions: bool = True
    force: bool = False

    def run(self, model: ir.Model, cx: Context) -> None:
        """Choose and write the layouts of the main graph with its bodies, and of each function."""
        for graph in [model.graph, *(function.graph for function in model.functions.values())]:
            if ir.standard_version(cx.edit.scopes.imports(graph)) >= _SINCE:
                self._run_on(graph, cx)

    def _run_on(self, graph: ir.Graph, cx: Context) -> None:
        decision = self._decide(graph, cx)
        if not decision.is_channels_last and not _has_transposes(graph):
            return
        for _ in range(_ROUNDS):
            flow = Dataflow.of(graph, cx, lambda node: _sites(node, cx, decision))
            keep_quantized_units(flow)
            biases = self._biases(flow) if decision.is_channels_last else {}
            if not write_layouts(choose_layouts(flow, biases), cx):
                break

    def _decide(self, graph: ir.Graph, cx: Context) -> LayoutDecision:
        nodes = list(ir.walk_nodes(graph))
        found = [node for node in nodes if is_convolution(node)] if self.convolutions else []
        if not found:
            return LayoutDecision(False, "no convolutions")
        if cx.options.portable:
            decision = LayoutDecision(False, "channels-last operators are not part of the ONNX standard")
        elif cx.options.numerics is Numerics.EXACT:
            decision = LayoutDecision(False, "channels-last kernels sum in another order")
        else:
            facts = [ConvolutionFacts.of(node, cx) for node in found]
            device = cx.target.device
            units = matrix_units(device, gpu_properties(device))
            capabilities = replace(device.capabilities, matrix_units=units)
            decision = decide_layout(facts, len(nodes), capabilities, force=self.force)
        cx.remarks.append(f"layout: {decision.reason}")
        if not decision.is_channels_last:
            for node in found:
                cx.refuse(Refusal(self.name, ir.label(node), decision.reason))
        return decision

    def _biases(self, flow: Dataflow) -> dict[Site, int]:
        """The preference of each convolution: the Transposes that cuDNN would otherwise run itself."""
        found: dict[Site, int] = {}
        for site in flow.sites:
            if is_convolution(site.node):
                values = (site.reads[0].value, site.results[0])
                tensors = [flow.tensor_of[value][0] for value in values if value is not None]
                found[site] = _FORCED if self.force else sum(tensor.cost for tensor in tensors)
        return found


def _has_transposes(graph: ir.Graph) -> bool:
    return any(node.op_type == "Transpose" and node.domain == "" for node in ir.walk_nodes(graph))


def _sites(node: ir.Node, cx: Context, decision: LayoutDecision) -> Iterator[Site]:
    """The sites of ``node``: none, one, or one for each tensor that it exchanges with its bodies."""
    if node.domain == "" and node.op_type in ("If", "Loop", "Scan"):
        yield from exchange_sites(node, cx)
        return
    m = Match(NAME, node, {}, cx)
    operators = [same_rank_operator(m, node), view_operator(m, node)]
    if decision.is_channels_last:
        operators.insert(0, channels_last_operator(node, cx))
    for operator in operators:
        site = node_site(node, operator, cx)
        if site is not None:
            yield site
            return
