"""Regions of a graph: make one a function, take a part out.

Reduction takes parts out; groups of nodes that are compiled as one become functions.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from graphopt.errors import UnsupportedModel
from graphopt.ir._onnx_ir import onnx_ir
from graphopt.ir.constants import constant_of
from graphopt.ir.editor import Editor
from graphopt.ir.provenance import keep_origin, label
from graphopt.ir.region.clone import Copier, reads
from graphopt.ir.schemas import is_beyond_standard
from graphopt.ir.scopes import bodies, normal_imports, standard_version, walk_nodes
from graphopt.ir.uses import read_instead, readers

#: Functions came with this IR version.
_FUNCTIONS_SINCE = 8


# Outlining ----------------------------------------------------------------------------------


def outline_obstacle(edit: Editor, nodes: Sequence[onnx_ir.Node], domain: str, name: str) -> str | None:
    """Why ``nodes`` can't become function ``domain::name``; ``None`` if they can."""
    found = _checked(edit, nodes, domain, name, in_a_row=False)
    return found if isinstance(found, str) else None


def _checked(
    edit: Editor, nodes: Sequence[onnx_ir.Node], domain: str, name: str, *, in_a_row: bool
) -> _Region | str:
    """The nodes as a region, or why they can't become a function."""
    graph = nodes[0].graph if nodes else None
    if graph is None or any(node.graph is not graph for node in nodes):
        return "the nodes do not stand in one graph"
    if edit.model.ir_version < _FUNCTIONS_SINCE:
        return f"the model has IR version {edit.model.ir_version}, and functions came with {_FUNCTIONS_SINCE}"
    if (domain, name, "") in edit.model.functions:
        return f"there is a function {domain}::{name} already"
    region = _Region(nodes, graph, in_a_row)
    version = standard_version(edit.scopes.imports(graph))
    for node in region.inside:
        if is_beyond_standard(node.domain, node.op_type, version):
            return f"{label(node)!r} is an operator that onnxruntime adds, on which it crashes in functions"
    for node in (*region.inside, *_holders(edit, graph)):
        if node.domain != "" and node.attributes and bodies(node):
            return f"{label(node)!r} of {node.domain} has a body, on which onnxruntime fails in functions"
    if region.back is not None:
        return f"{label(region.back)!r} lies outside, between two of the nodes"
    if not region.outputs:
        return "nothing outside reads what the nodes compute"
    return region


def _holders(edit: Editor, graph: onnx_ir.Graph) -> list[onnx_ir.Node]:
    """The nodes whose bodies ``graph`` stands in, inner ones first."""
    found: list[onnx_ir.Node] = []
    while (holder := edit.scopes.holder(graph)) is not None:
        assert holder.graph is not None
        found.append(holder)
        graph = holder.graph
    return found


class _Region:
    """A set of nodes of one sorted graph, seen from outside.

    Attributes:
        nodes: in the order of the graph.
        inside: the nodes and all nodes in their bodies.
        inputs: outer values that they read, in order.
        outputs: their values that others read, or that the graph returns, in order.
        after: nodes outside, standing between them, that depend on them.
        back: a node outside that depends on some of them and feeds others: then the region is not convex.
    """

    def __init__(self, nodes: Sequence[onnx_ir.Node], graph: onnx_ir.Graph, in_a_row: bool) -> None:
        chosen = frozenset(nodes)
        self.nodes = list(nodes) if in_a_row else [node for node in graph if node in chosen]
        self.inside = dict.fromkeys(
            inner
            for node in self.nodes
            for inner in (node, *(inner for body in bodies(node) for inner in walk_nodes(body)))
        )
        made = {output for node in self.nodes for output in node.outputs}
        read = dict.fromkeys(value for node in self.nodes for value in reads(node))
        self.inputs = [value for value in read if value not in made]
        self.outputs = [
            output
            for node in self.nodes
            for output in node.outputs
            if output.is_graph_output() or any(reader not in self.inside for reader in readers(output))
        ]
        self.after: list[onnx_ir.Node] = []
        self.back: onnx_ir.Node | None = None
        if not in_a_row:
            self._look_between(graph, made)

    def _look_between(self, graph: onnx_ir.Graph, made: set[onnx_ir.Value]) -> None:
        first, last = self.nodes[0], self.nodes[-1]
        dependent: dict[onnx_ir.Value, onnx_ir.Node] = {}  # values that depend on the region, outside it
        between = False
        for node in graph:
            between = between or node is first
            if not between:
                continue
            if node in self.inside:
                self.back = self.back or next(
                    (dependent[value] for value in reads(node) if value in dependent), None
                )
            elif any(value in made or value in dependent for value in reads(node)):
                self.after.append(node)
                dependent.update((output, node) for output in node.outputs)
            if node is last:
                return


def outline(
    edit: Editor, nodes: Sequence[onnx_ir.Node], domain: str, name: str, *, in_a_row: bool = False
) -> tuple[onnx_ir.Function, onnx_ir.Node]:
    """Move ``nodes`` into a new function ``domain::name``; returns it and the call that stands for them.

    The nodes must be convex: no path leads out of them and back. Weights that they read become
    inputs of the function. Inlining the call undoes it, up to names.

    Args:
        in_a_row: the nodes stand in their graph in this order, with none between them: then the graph need
            not be searched, so that any number of regions takes the time of one walk.

    Raises:
        UnsupportedModel: see :func:`outline_obstacle`.
    """
    region = _checked(edit, nodes, domain, name, in_a_row=in_a_row)
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
            edit.take_over(new, old)
        edit.rename(old, bare)
    instead = dict(zip(region.inputs, formals, strict=True))
    for node in region.inside:
        outer = {index: instead[value] for index, value in enumerate(node.inputs) if value in instead}
        if outer:
            read_instead(node, outer)
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
    """The attributes of a surrounding function that ``nodes`` refer to, to be passed on by a call."""
    found: dict[str, onnx_ir.Attr] = {}
    for node in nodes:
        for attribute in node.attributes.values() if node.attributes else ():
            if attribute.is_ref():
                name = attribute.ref_attr_name or ""
                found[name] = onnx_ir.RefAttr(name, name, attribute.type)
    return dict(sorted(found.items()))


# Taking out -----------------------------------------------------------------------------------

Declare = Callable[[onnx_ir.Value], tuple[onnx_ir.TypeProtocol | None, onnx_ir.Shape | None]]


def declared(value: onnx_ir.Value) -> tuple[onnx_ir.TypeProtocol | None, onnx_ir.Shape | None]:
    """The type and shape that the model declares for ``value``."""
    return value.type, value.shape


def extract(
    nodes: Sequence[onnx_ir.Node],
    outputs: Sequence[onnx_ir.Value],
    inputs: Sequence[onnx_ir.Value] = (),
    *,
    declare: Declare = declared,
) -> onnx_ir.Graph:
    """A graph of its own with copies of ``nodes``, which computes ``outputs``.

    Args:
        nodes: in topological order.
        inputs: its first inputs; other values that the nodes read follow, unless they are constant:
            those are copied, tensors shared.
    """
    made = {output for node in nodes for output in node.outputs}
    asked_for = frozenset(inputs)
    wanted = dict.fromkeys([*inputs, *(value for node in nodes for value in reads(node)), *outputs])
    copier = Copier()
    taken: list[onnx_ir.Value] = []
    initializers: list[onnx_ir.Value] = []
    for value in wanted:
        if value in made:
            continue
        kind, shape = declare(value)
        copy = onnx_ir.Value(
            name=value.name,
            type=kind,
            shape=None if shape is None else shape.copy(),
            doc_string=value.doc_string,
            metadata_props=dict(value.metadata_props),
        )
        copier.values[value] = copy
        tensor = constant_of(value)
        if value.is_initializer() and value.const_value is not None:
            copy.const_value = value.const_value
            initializers.append(copy)
        elif tensor is not None:  # a Constant node that stands outside
            copy.const_value = tensor
            initializers.append(copy)
        if tensor is None or value in asked_for:
            taken.append(copy)
    copies = copier.nodes(nodes)
    results = [copier.value(value) for value in outputs]
    for value, result in zip(outputs, results, strict=True):
        if result is not None and value in made:
            result.type, result.shape = declare(value)
    return onnx_ir.Graph(
        taken, [result for result in results if result is not None], nodes=copies, initializers=initializers
    )
