"""Print a model, one node per line, for comparison line by line.

``%result: f32[B, S, 768] = Op(%operand, {0.5}, attribute=value)  # original name``

Small constants are printed inline at their readers, without a separate line; large ones have a line with
their type and a tag of their contents. Long or irregular names are shortened to their end and a hash of the
whole name, so that a rewrite changes only the lines of the nodes that it affects. The full form adds the
whole names, and the lines of small constants.
"""

from __future__ import annotations

import hashlib
import json
import re
from base64 import b32encode
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import NamedTuple

from graphopt.ir._onnx_ir_without_sympy import onnx_ir
from graphopt.ir.constants import constant_of, is_overridable
from graphopt.ir.nested_graphs import graphs_of
from graphopt.ir.print_values import attribute_text, constant_text, declared_type, inline_text, quoted
from graphopt.util.text_tables import escaped

#: Text of a value's type, such as ``f32[B, 4]``; ``None`` if it is unknown.
Types = Callable[[onnx_ir.Value], str | None]

_PLAIN = re.compile(r"[A-Za-z0-9_./:-]{1,20}")
_SUFFIX = re.compile(r"_output_\d+$")
#: Counters that exporters and graphopt append to names.
_STEM = re.compile(r"(_output_\d+|:\d+|_+\d+)+$")
_TAIL = 16
_INDENT = "  "
_COMMENT = "  # "


class Names:
    """Short names of values, each determined by the value's own name alone.

    Args:
        names: all names, to resolve collisions between shortened ones.
        earlier: names of an earlier state of the same model, which need not be shortened again.
    """

    def __init__(self, names: Iterable[str] = (), earlier: Names | None = None) -> None:
        known = {} if earlier is None else earlier._short
        #: The short form of each name, and the one that is printed, which is longer after a collision.
        self._short: dict[str, str] = {name: known.get(name) or _short(name) for name in names}
        self._shown = dict(self._short)
        taken = Counter([short for name, short in self._short.items() if short != name])
        if len(taken) != taken.total():
            for name, short in self._short.items():
                if short != name and taken[short] > 1:
                    self._shown[name] = _shorten(name, 12)

    @classmethod
    def of(cls, model: onnx_ir.Model, earlier: Names | None = None) -> Names:
        """Names for all values of ``model``."""
        return cls((name for graph in graphs_of(model) for name in _value_names(graph)), earlier)

    def __call__(self, value: onnx_ir.Value | None) -> str:
        """The short name, with its ``%``; ``_`` for no value."""
        name = value.name if value is not None else None
        if not name:
            return "_"
        short = self._shown.get(name)
        if short is None:
            short = self._shown[name] = _short(name)
        return f"%{short}"


def _short(name: str) -> str:
    """``name`` itself if it is short and regular, otherwise a shortened form."""
    return name if _PLAIN.fullmatch(name) else _shorten(name)


def _shorten(name: str, digits: int = 4) -> str:
    """The last components of ``name``, as many as fit, and a hash."""
    parts = [part for part in re.split(r"[^A-Za-z0-9_-]+", _SUFFIX.sub("", name)) if part]
    tail = parts.pop()[-_TAIL:] if parts else ""
    while parts and len(parts[-1]) + 1 + len(tail) <= _TAIL:
        tail = f"{parts.pop()}.{tail}"
    digest = b32encode(hashlib.blake2b(name.encode("utf-8", "surrogatepass"), digest_size=10).digest())
    return f"{tail}~{digest[:digits].decode().lower()}"


def _value_names(graph: onnx_ir.Graph) -> Iterator[str]:
    for value in graph.inputs:
        yield value.name or ""
    yield from graph.initializers
    for node in graph:
        for output in node.outputs:
            yield output.name or ""


class Operand(NamedTuple):
    """A printed operand.

    Attributes:
        text: a small constant, the short name of a value, or ``_`` for an omitted operand.
        name: the whole name of the value; ``None`` for constants and ``_``.
    """

    text: str
    name: str | None = None


def operand(value: onnx_ir.Value | None, names: Names) -> Operand:
    """The text of ``value`` in the line of its reader."""
    if value is None:
        return Operand("_")
    inline = inline_text(constant_of(value))
    return Operand(names(value), value.name) if inline is None else Operand(inline)


def attributes(node: onnx_ir.Node) -> Iterator[tuple[str, str]]:
    """Names and texts of the attributes of ``node``, by name, without its bodies."""
    for name in sorted(node.attributes) if node.attributes else ():
        text = attribute_text(node.attributes[name])
        if text is not None:
            yield name, text


def print_node(node: onnx_ir.Node, names: Names | None = None, *, types: Types | None = None) -> str:
    """The line of ``node``, without its bodies."""
    names, types = names or Names(), types or declared_type
    results = ", ".join(typed(names(output), types(output)) for output in node.outputs)
    operands = [operand(value, names).text for value in node.inputs]
    operands += [f"{name}={text}" for name, text in attributes(node)]
    return f"{results} = {operator(node)}({', '.join(operands)})"


def typed(name: str, kind: str | None) -> str:
    """``%name: type``; the name alone if the type is unknown."""
    return name if kind is None or name == "_" else f"{name}: {kind}"


def operator(node: onnx_ir.Node) -> str:
    """``Relu``, ``domain::Op`` or ``domain::Op:overload``."""
    return operator_of(*node.op_identifier())


def operator_of(domain: str, name: str, overload: str = "") -> str:
    """Like :func:`operator`, for the parts of an identifier."""
    return (f"{domain}::" if domain else "") + name + (f":{overload}" if overload else "")


def is_inlined(value: onnx_ir.Value) -> bool:
    """Whether ``value`` is a small constant, which is printed inline."""
    return not value.is_graph_output() and inline_text(constant_of(value)) is not None


def print_neighbourhood(node: onnx_ir.Node) -> str:
    """The lines of ``node`` and of the producers of its inputs, for messages."""
    names = Names(output.name or "" for output in node.outputs)
    producers = [value.producer() for value in node.inputs if value is not None]
    shown = [
        producer for producer in dict.fromkeys(producers) if producer is not None and producer is not node
    ]
    return "\n".join(f"{_INDENT}{_line(item, names, declared_type, full=True)}" for item in [*shown, node])


def _line(node: onnx_ir.Node, names: Names, types: Types, *, full: bool) -> str:
    comment = _comment([*node.outputs], names, node) if full else node_comment(node)
    return print_node(node, names, types=types) + comment


def _comment(values: Sequence[onnx_ir.Value], names: Names, node: onnx_ir.Node | None = None) -> str:
    """A comment with the whole names that the line abbreviates."""
    hidden = [value.name for value in values if value.name and names(value) != f"%{value.name}"]
    name = node.name if node is not None else None
    if name and not any(value.name and value.name.startswith(name) for value in values):
        hidden.append(name if not hidden else f"({name})")
    return _commented(hidden)


def _commented(texts: Sequence[str]) -> str:
    if not texts:
        return ""
    return _COMMENT + " ".join(json.dumps(text, ensure_ascii=False)[1:-1] for text in texts)


def node_comment(node: onnx_ir.Node) -> str:
    """The name of ``node``, shortened, unless implied by the names of its values or its operator."""
    name = node.name or ""
    stem = _STEM.sub("", name)
    if not name or re.split(r"[/.]", stem)[-1] == node.op_type:
        return ""
    if any(output.name and _is_prefix(stem, _STEM.sub("", output.name)) for output in node.outputs):
        return ""
    return _commented([name if _PLAIN.fullmatch(name) else _shorten(name)])


def _is_prefix(one: str, other: str) -> bool:
    """Whether one name is a prefix of the other, as exporters name nodes and their values."""
    short, long = sorted((one, other), key=len)
    return long.startswith(short) and (len(long) == len(short) or not long[len(short)].isalnum())


def print_model(model: onnx_ir.Model, *, types: Types | None = None, full: bool = False) -> str:
    """All of ``model``: header, main graph, functions.

    Args:
        model: the model.
        types: the printed types, such as inferred types; by default the declared types.
        full: also print whole names in comments, and lines of small and of unread constants.
    """
    names, types = Names.of(model), types or declared_type
    lines = [header(model)]
    if model.producer_name:
        lines.append(f"producer {quoted(model.producer_name)} {quoted(model.producer_version or '')}")
    form = _Form(names, types, full)
    lines += _graph_lines(graph_head(model.graph), model.graph, form)
    for function in model.functions.values():
        lines += ["", *_graph_lines(function_head(function), function.graph, form)]
    return _joined(lines)


def header(model: onnx_ir.Model) -> str:
    """The IR version and the opsets."""
    return f"ir {model.ir_version}, {_imports(model.opset_imports)}"


class _Form(NamedTuple):
    """Options of printing."""

    names: Names
    types: Types
    full: bool


def _joined(lines: Iterable[str]) -> str:
    """``lines`` as text. Line breaks in names of operators, dims and domains are escaped."""
    return "".join(f"{escaped(line)}\n" for line in lines)


def _imports(imports: dict[str, int]) -> str:
    return ", ".join(f"{domain or 'ai.onnx'} {version}" for domain, version in imports.items())


def graph_head(graph: onnx_ir.Graph) -> str:
    """The line before the contents of ``graph``, without its brace."""
    return f"graph {quoted(graph.name or '')}"


def function_head(function: onnx_ir.Function) -> str:
    """The line before the contents of ``function``, without its brace."""
    overload = f":{function.overload}" if function.overload else ""
    parameters = []
    for attribute in function.attributes.values():
        default = attribute_text(attribute) if attribute.type != onnx_ir.AttributeType.UNDEFINED else None
        parameters.append(f"@{attribute.name}" + (f"={default}" if default is not None else ""))
    signature = f"({', '.join(parameters)})" if parameters else ""
    head = f"function {function.domain}::{function.name}{overload}{signature}"
    return f"{head}, {_imports(function.opset_imports)}"


def _graph_lines(head: str, graph: onnx_ir.Graph, form: _Form) -> list[str]:
    lines = [f"{head} {{"]
    pending = [_items(graph, form, _INDENT)]
    while pending:
        item = next(pending[-1], None)
        if item is None:
            pending.pop()
        elif isinstance(item, str):
            lines.append(item)
        else:
            pending.append(item)
    lines.append("}")
    return lines


_Items = Iterator["str | _Items"]


def _items(graph: onnx_ir.Graph, form: _Form, indent: str) -> _Items:
    """Lines, and for each body the iterator of its lines."""
    names, types, full = form
    for value in graph.inputs:
        tensor = value.const_value if value.is_initializer() else None
        # before IR version 4, all initializers are listed as inputs
        if tensor is not None and not is_overridable(value):
            yield from _constant(value, tensor, form, indent)
            continue
        default = "" if tensor is None else f" = {constant_text(tensor)}"
        yield f"{indent}input {typed(names(value), types(value))}{default}{_comment([value], names)}"
    for value in graph.initializers.values():
        if value.const_value is not None and not value.is_graph_input():
            yield from _constant(value, value.const_value, form, indent)
    for node in graph:
        if not full and node.outputs and node.op_type == "Constant" and is_inlined(node.outputs[0]):
            continue
        yield f"{indent}{_line(node, names, types, full=full)}"
        for name, body in named_bodies(node):
            yield _body(name, body, form, indent + _INDENT)
    for value in graph.outputs:
        yield f"{indent}output {typed(names(value), declared_type(value))}{_comment([value], names)}"


def _constant(
    value: onnx_ir.Value, tensor: onnx_ir.TensorProtocol, form: _Form, indent: str
) -> Iterator[str]:
    if not is_inlined(value) or (form.full and not value.uses()):
        comment = _comment([value], form.names) if form.full else ""
        yield f"{indent}constant {form.names(value)}: {constant_text(tensor)}{comment}"


def named_bodies(node: onnx_ir.Node) -> Iterator[tuple[str, onnx_ir.Graph]]:
    """The bodies of ``node`` with their names: ``attribute``, or ``attribute[index]`` for one of several."""
    for attribute in node.attributes.values() if node.attributes else ():
        if attribute.is_ref():
            continue
        if attribute.type == onnx_ir.AttributeType.GRAPH:
            yield attribute.name, attribute.value
        elif attribute.type == onnx_ir.AttributeType.GRAPHS:
            yield from ((f"{attribute.name}[{index}]", body) for index, body in enumerate(attribute.value))


def _body(name: str, body: onnx_ir.Graph, form: _Form, indent: str) -> _Items:
    yield f"{indent}{name} {{"
    yield from _items(body, form, indent + _INDENT)
    yield f"{indent}}}"
