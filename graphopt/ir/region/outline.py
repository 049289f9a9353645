"""Outline: move nodes of a graph into a new function."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from graphopt.errors import UnsupportedModel
from graphopt.ir._onnx_ir_without_sympy import onnx_ir
from graphopt.ir.editor.editor import Editor
from graphopt.ir.nested_graphs import bodies, normal_imports, standard_version, walk_nodes
from graphopt.ir.provenance import keep_origin, label
from graphopt.ir.region.clone import reads
from graphopt.ir.schema_checks import is_beyond_standard
from graphopt.ir.value_uses import readers, replace_inputs

#: First IR version with functions.
FUNCTIONS_SINCE = 8


def functions_obstacle(model: onnx_ir.Model) -> str | None:
    """The reason why ``model`` can't have functions; ``None`` if it can."""
    if model.ir_version < FUNCTIONS_SINCE:
        return (
            f"functions came with IR version {FUNCTIONS_SINCE}, the model has IR version {model.ir_version}"
        )
    return None


def outline_obstacle(edit: Editor, nodes: Sequence[onnx_ir.Node], domain: str, name: str) -> str | None:
    """The reason why ``nodes`` can't become function ``domain::name``; ``None`` if they can."""
    found = _region_of(edit, nodes, domain, name, in_a_row=False)
    return found if isinstance(found, str) else None


def _region_of(
    edit: Editor, nodes: Sequence[onnx_ir.Node], domain: str, name: str, *, in_a_row: bool
) -> _Region | str:
    """The nodes as a region, or the reason why they can't become a function."""
    graph = nodes[0].graph if nodes else None
    if graph is None or any(node.graph is not graph for node in nodes):
        return "the nodes are in different graphs"
    obstacle = functions_obstacle(edit.model)
    if obstacle is not None:
        return obstacle
    if (domain, name, "") in edit.model.functions:
        return f"function {domain}::{name} exists already"
    region = _Region(nodes, graph, in_a_row)
    version = standard_version(edit.scopes.imports(graph))
    for node in region.inside:
        if is_beyond_standard(node.domain, node.op_type, version):
            return f"{label(node)!r} extends the standard domain, and onnxruntime crashes on it in functions"
    for node in (*region.inside, *_holders(edit, graph)):
        if node.domain != "" and node.attributes and bodies(node):
            return f"{label(node)!r} of {node.domain} has a body, unsupported by onnxruntime in functions"
    if region.back is not None:
        return f"{label(region.back)!r} is outside, on a path between two of the nodes"
    if not region.outputs:
        return "no output of the nodes is read outside"
    return region


def _holders(edit: Editor, graph: onnx_ir.Graph) -> list[onnx_ir.Node]:
    """The nodes with bodies that contain ``graph``, inner ones first."""
    found: list[onnx_ir.Node] = []
    while (holder := edit.scopes.holder(graph)) is not None:
        assert holder.graph is not None
        found.append(holder)
        graph = holder.graph
    return found


class _Region:
    """A set of nodes of one sorted graph, with its interface.

    Attributes:
        nodes: the nodes, in the order of the graph.
        inside: the nodes and all nodes in their bodies.
        inputs: outer values that they read, in order.
        outputs: their values that outer nodes or outputs of the graph read, in order.
        after: outer nodes that depend on the nodes, and are located between them.
        back: an outer node that depends on one of the nodes and feeds another, so that the region is not
            convex.
    """

    def __init__(self, nodes: Sequence[onnx_ir.Node], graph: onnx_ir.Graph, in_a_row: bool) -> None:
        chosen = frozenset(nodes)
        self.nodes = list(nodes) if in_a_row else [node for node in graph if node in chosen]
        self.inside = dict.fromkeys(
            inner
            for node in self.nodes
            for inner in (node, *(inner for body in bodies(node) for inner in walk_nodes(body)))
        )
        produced = {output for node in self.nodes for output in node.outputs}
        read = dict.fromkeys(value for node in self.nodes for value in reads(node))
        self.inputs = [value for value in read if value not in produced]
        self.outputs = [
            output
            for node in self.nodes
            for output in node.outputs
            if output.is_graph_output() or any(reader not in self.inside for reader in readers(output))
        ]
        self.after: list[onnx_ir.Node] = []
        self.back: onnx_ir.Node | None = None
        if not in_a_row:
            self._find_outer_nodes(graph, produced)

    def _find_outer_nodes(self, graph: onnx_ir.Graph, produced: set[onnx_ir.Value]) -> None:
        first, last = self.nodes[0], self.nodes[-1]
        dependent: dict[onnx_ir.Value, onnx_ir.Node] = {}  # outer values that depend on the region
        between = False
        for node in graph:
            between = between or node is first
            if not between:
                continue
            if node in self.inside:
                self.back = self.back or next(
                    (dependent[value] for value in reads(node) if value in dependent), None
                )
            elif any(value in produced or value in dependent for value in reads(node)):
                self.after.append(node)
                dependent.update((output, node) for output in node.outputs)
            if node is last:
                return


def outline(
    edit: Editor, nodes: Sequence[onnx_ir.Node], domain: str, name: str, *, in_a_row: bool = False
) -> tuple[onnx_ir.Function, onnx_ir.Node]:
    """Move ``nodes`` into a new function ``domain::name``; returns it and the call that replaces them.

    The nodes must be convex: no path leaves the nodes and returns. Weights that the nodes read become inputs
    of the function. Inlining the call is the inverse, up to names.

    Args:
        edit: the model's editor.
        nodes: nodes of one graph.
        domain: the function's domain.
        name: the function's name.
        in_a_row: whether the nodes are consecutive in their graph, in this order. If true, the graph is not
            searched, and outlining many regions takes linear time.

    Raises:
        UnsupportedModel: see :func:`outline_obstacle`.
    """
    region = _region_of(edit, nodes, domain, name, in_a_row=in_a_row)
    if isinstance(region, str):
        raise UnsupportedModel(f"the nodes can't become function {domain}::{name}: {region}")
    graph = nodes[0].graph
    assert graph is not None
    references = _references(region.inside)
    imports = edit.scopes.imports(graph)
    used = dict.fromkeys(node.domain for node in region.inside)
    formals = [onnx_ir.Value(name=edit.fresh_name(value.name or "input")) for value in region.inputs]
    call = edit.make_node(
        name, region.inputs, references.values(), domain=domain, outputs=len(region.outputs), name=name
    )
    edit.insert_before(region.nodes[-1], [call])
    if region.after:
        edit.move_after(call, region.after)
    for node in region.inside:
        keep_origin(node)
    for old, new in zip(region.outputs, call.outputs, strict=True):
        was_output = old.is_graph_output()
        bare = old.name or ""
        edit.replace(old, new, keep=region.inside)
        if not was_output:
            edit.transfer_name(new, old)
        edit.rename(old, bare)
    replacements = dict(zip(region.inputs, formals, strict=True))
    for node in region.inside:
        outer = {
            index: replacements[value] for index, value in enumerate(node.inputs) if value in replacements
        }
        if outer:
            replace_inputs(node, outer)
    normal = normal_imports(imports)
    function = edit.make_function(
        domain,
        name,
        formals,
        region.outputs,
        region.nodes,
        [onnx_ir.Attr(reference, onnx_ir.AttributeType.UNDEFINED, None) for reference in references],
        {item: normal.get(item, 1) for item in used},  # onnxruntime needs no import of its own domains
    )
    imports.setdefault(domain, 1)
    edit.model.opset_imports.setdefault(domain, 1)
    return function, call


def _references(nodes: Iterable[onnx_ir.Node]) -> dict[str, onnx_ir.Attr]:
    """The attributes of the enclosing function that ``nodes`` refer to, for the call to pass on."""
    found: dict[str, onnx_ir.Attr] = {}
    for node in nodes:
        for attribute in node.attributes.values() if node.attributes else ():
            if attribute.is_ref():
                name = attribute.ref_attr_name or ""
                found[name] = onnx_ir.RefAttr(name, name, attribute.type)
    return dict(sorted(found.items()))
