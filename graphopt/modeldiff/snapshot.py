"""The lines of a printed model, in parts that can be compared.

Lines are identified by the values that they define, not by position. A comparison is thus linear in the
model, and a node that only reads another value does not count as a removed and an added node.
"""

from __future__ import annotations

import operator
from collections.abc import Iterator
from typing import Literal, NamedTuple

from graphopt import ir
from graphopt.ir import printer
from graphopt.ir.printer import Operand, Types
from graphopt.util.lazy_dataclass import dataclass

#: The kind of a line; ``begin`` and ``end`` enclose graphs, bodies and functions.
Kind = Literal["format", "opset", "producer", "order", "begin", "end", "input", "constant", "node", "output"]
#: Names of the function, nodes and attributes that contain a line, outermost first.
Path = tuple[str, ...]
#: Path, kind and name: a key is never reused for another line of the same model.
Key = tuple[Path, str, str]
#: A value: the function that it is in (empty for the main graph), and its name.
Ident = tuple[str, str]


@dataclass(frozen=True)
class Line:
    """One line of a printed model.

    Attributes:
        key: identifies it within its model.
        results: the printed values that it defines, each with its type.
        idents: the names of the same values.
        operator: the operator of a node; for other kinds, the line after the results.
        operands: the operands of a node, or the value of an output.
        attributes: the attributes of a node, without its bodies.
        names: whole names of the values, and of the node, for the full form.
        comment: the name of the node, if its values do not imply it.
        scope: the modules that contain the node, outermost first.
    """

    key: Key
    kind: Kind
    results: tuple[tuple[str, str | None], ...] = ()
    idents: tuple[Ident, ...] = ()
    operator: str = ""
    operands: tuple[Operand, ...] = ()
    attributes: tuple[tuple[str, str], ...] = ()
    names: tuple[str, ...] = ()
    comment: str = ""
    node: ir.Node | None = None
    scope: Path = ()

    @property
    def path(self) -> Path:
        return self.key[0]

    @property
    def name(self) -> str:
        """The first printed value that the line defines, or another identifier."""
        return self.results[0][0] if self.results else self.key[2]

    @property
    def depth(self) -> int:
        """Levels of indentation."""
        inner = self.kind not in ("begin", "end", "format", "opset", "producer", "order")
        levels = len(self.path) - bool(owner_of(self.path))
        return 2 * levels + inner


def owner_of(path: Path) -> str:
    """The function at the start of a path; empty for the main graph."""
    return path[0] if path and path[0].startswith("function ") else ""


_Bodies = Iterator["_Bodies"]


class _Parts(NamedTuple):
    """The parts of a node's line that depend on neither its inputs nor the types of its results.

    They are computed again only if ``operator_and_names`` differ, or an attribute is another object.
    """

    operator_and_names: tuple[tuple[str, str, str], tuple[str, ...]]
    attribute_objects: tuple[ir.Attr, ...]
    operator: str
    attributes: tuple[tuple[str, str], ...]
    names: tuple[str, ...]
    comment: str
    scope: Path


class Snapshot:
    """The printed lines of a model at one moment.

    Args:
        types: the types to show; by default the declared types.
        is_anonymous: whether to omit the producer and the name of the main graph.
        earlier: a snapshot of an earlier state of the same model; unchanged parts are copied from it.

    Attributes:
        paths: the path of each graph.
        lines: the lines by key, in the order of printing.
        idents: the name of each value.
        shown: the text of each value as an operand, by name.
        inlined: the text of each small constant without a separate line, by name.
    """

    def __init__(
        self,
        model: ir.Model,
        types: Types | None = None,
        *,
        is_anonymous: bool = False,
        earlier: Snapshot | None = None,
    ) -> None:
        self._earlier_parts = {} if earlier is None else earlier._parts
        self._parts: dict[ir.Node, _Parts] = {}
        self._operands: dict[ir.Value | None, Operand] = {}
        self._names: ir.Names = ir.Names.of(model, None if earlier is None else earlier._names)
        self._types = types or ir.declared_type
        self.paths: dict[ir.Graph, Path] = {}
        self.lines: dict[Key, Line] = {}
        self.idents: dict[ir.Value, Ident] = {}
        self.shown: dict[Ident, Operand] = {}
        self.inlined: dict[Ident, str] = {}
        self._header(model)
        self._graph(model.graph, "graph" if is_anonymous else printer.graph_head(model.graph), ())
        for function in model.functions.values():
            key = ":".join(filter(None, function.identifier()))
            self._graph(function.graph, printer.function_head(function), (f"function {key}",))
        if is_anonymous:
            self.lines.pop(((), "producer", ""), None)
        self._earlier_parts, self._operands = {}, {}  # keep no earlier snapshot alive

    def _add(self, line: Line) -> None:
        self.lines[line.key] = line

    def _header(self, model: ir.Model) -> None:
        self._add(Line(((), "format", "ir"), "format", (("ir", None),), operator=f" {model.ir_version}"))
        for domain, version in model.opset_imports.items():
            name = domain or "ai.onnx"
            self._add(Line(((), "opset", name), "opset", ((f"opset {name}", None),), operator=f" {version}"))
        if model.producer_name:
            shown = f" {model.producer_name} {model.producer_version or ''}".rstrip()
            self._add(Line(((), "producer", ""), "producer", (("producer", None),), operator=shown))

    def _graph(self, root: ir.Graph, head: str, path: Path) -> None:
        self._add(Line((path, "begin", ""), "begin", operator=f"{head} {{"))
        owner = owner_of(path)
        pending = [self._items(root, path, owner)]
        while pending:
            body = next(pending[-1], None)
            if body is None:
                pending.pop()
            else:
                pending.append(body)
        self._add(Line((path, "end", ""), "end", operator="}"))

    def _items(self, graph: ir.Graph, path: Path, owner: str) -> _Bodies:
        """Add the lines of ``graph``; yields such an iterator for each body, at its position."""
        self.paths[graph] = path
        for value in graph.inputs:
            tensor = value.const_value if value.is_initializer() else None
            if tensor is not None and not ir.is_overridable(value):
                self._constant(value, tensor, path, owner)
            else:
                default = "" if tensor is None else f" = {ir.constant_text(tensor)}"
                self._value("input", value, self._types(value), default, path, owner)
        for value in graph.initializers.values():
            if value.const_value is not None and not value.is_graph_input():
                self._constant(value, value.const_value, path, owner)
        for index, node in enumerate(graph):
            first = node.outputs[0] if node.outputs else None
            if first is not None and node.op_type == "Constant" and printer.is_inlined(first):
                self._hide(first, owner)
                continue
            results = [output.name for output in node.outputs if output.name]
            name = results[0] if results else f"{node.name}#{index}"
            self._node(node, (path, "node", name), owner)
            for attribute, body in printer.named_bodies(node):
                inner = (*path, f"{name} {attribute}")
                self._add(Line((inner, "begin", ""), "begin", operator=f"{attribute} {{"))
                yield self._items(body, inner, owner)
                self._add(Line((inner, "end", ""), "end", operator="}"))
        for index, value in enumerate(graph.outputs):
            self._output(value, path, index)

    def _output(self, value: ir.Value, path: Path, index: int) -> None:
        kind = ir.declared_type(value)
        key = (path, "output", f"#{index}" if path else value.name or "")
        if key in self.lines:  # the main graph may return a value twice
            key = (path, "output", f"{value.name}#{index}")
        line = Line(
            key,
            "output",
            ((f"output {self._names(value)}", None),),
            operator="" if kind is None else f": {kind}",
            operands=(self._operand(value),),
            names=(value.name or "",),
        )
        self._add(line)

    def _constant(self, value: ir.Value, tensor: ir.TensorProtocol, path: Path, owner: str) -> None:
        if printer.is_inlined(value):
            self._hide(value, owner)
        else:
            self._value("constant", value, None, f": {ir.constant_text(tensor)}", path, owner)

    def _hide(self, value: ir.Value, owner: str) -> None:
        ident = self._note(value, owner)
        self.inlined[ident] = self.shown[ident].text

    def _note(self, value: ir.Value, owner: str) -> Ident:
        ident = self.idents[value] = (owner, value.name or "")
        self.shown[ident] = self._operand(value)
        return ident

    def _operand(self, value: ir.Value | None) -> Operand:
        found = self._operands.get(value)
        if found is None:
            found = self._operands[value] = printer.operand(value, self._names)
        return found

    def _value(
        self, kind: Kind, value: ir.Value, type_: str | None, rest: str, path: Path, owner: str
    ) -> None:
        ident = self._note(value, owner)
        results = ((f"{kind} {self._names(value)}", type_),)
        self._add(
            Line((path, kind, ident[1]), kind, results, (ident,), operator=rest, names=(value.name or "",))
        )

    def _node(self, node: ir.Node, key: Key, owner: str) -> None:
        parts = self._parts_of(node)
        line = Line(
            key,
            "node",
            tuple([(self._names(output), self._types(output)) for output in node.outputs]),
            tuple([self._note(output, owner) for output in node.outputs if output.name]),
            parts.operator,
            tuple([self._operand(value) for value in node.inputs]),
            parts.attributes,
            parts.names,
            parts.comment,
            node,
            parts.scope,
        )
        self._add(line)

    def _parts_of(self, node: ir.Node) -> _Parts:
        names = (*[output.name or "" for output in node.outputs], node.name or "")
        operator_and_names, attribute_objects = (
            (node.op_identifier(), names),
            tuple(node.attributes.data.values()),
        )
        parts = self._earlier_parts.get(node)
        if (
            parts is None
            or parts.operator_and_names != operator_and_names
            or not _are_same(parts.attribute_objects, attribute_objects)
        ):
            parts = _Parts(
                operator_and_names,
                attribute_objects,
                printer.operator(node),
                tuple(printer.attributes(node)),
                names,
                printer.node_comment(node),
                scope_of(node),
            )
        self._parts[node] = parts
        return parts


def _are_same(some: tuple[ir.Attr, ...], others: tuple[ir.Attr, ...]) -> bool:
    return len(some) == len(others) and all(map(operator.is_, some, others))


def scope_of(node: ir.Node) -> Path:
    """The modules that contain ``node``, from its name up to the last slash.

    TensorFlow's converters join the names of all nodes that a node replaces by ``;``; only the first is used.
    """
    name = (node.name or "").partition(";")[0]
    return tuple(part for part in name.split("/")[:-1] if part)
