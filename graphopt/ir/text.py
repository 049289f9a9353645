"""The printed form of a model: one node a line, made to be compared line by line.

``%result: f32[B,S,768] = Op(%operand, {0.5}, attribute=value)  # original name``

Small constants stand where they are read; large ones have a line of their own, with their type
and a tag of their contents. Names that are long or odd are shortened to the end of the name and
a hash of all of it, so that a rewrite changes no line but those of the nodes it touches.
"""

from __future__ import annotations

import hashlib
import json
import re
from base64 import b32encode
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence

from graphopt.ir.constants import constant_of, is_overridable
from graphopt.ir.literals import attribute_text, constant_text, declared_type, inline_text, quoted
from graphopt.ir.onnxir import onnx_ir
from graphopt.ir.scopes import graphs_of, with_bodies

#: Text of a value's type, such as ``f32[B,4]``; ``None`` if it is unknown.
Types = Callable[[onnx_ir.Value], str | None]

_PLAIN = re.compile(r"[A-Za-z0-9_./:-]{1,20}")
_SUFFIX = re.compile(r"_output_\d+$")
_TAIL = 16
_INDENT = "  "
_COMMENT = "  # "


class Names:
    """Short names for values, each made of nothing but the value's own name.

    Args:
        names: every name that may be asked for, so that two that would be shortened to the same
            are told apart.
    """

    def __init__(self, names: Iterable[str] = ()) -> None:
        self._shown = {name: _shorten(name) for name in names if not _PLAIN.fullmatch(name)}
        taken = Counter(self._shown.values())
        for name, short in self._shown.items():
            if taken[short] > 1:
                self._shown[name] = _shorten(name, 12)

    @classmethod
    def of(cls, model: onnx_ir.Model) -> Names:
        """Names for all values of ``model``."""
        return cls(name for graph in graphs_of(model) for name in _value_names(graph))

    def __call__(self, value: onnx_ir.Value | None) -> str:
        """The short name, with its ``%``; ``_`` for no value."""
        name = value.name if value is not None else None
        if not name:
            return "_"
        short = self._shown.get(name)
        if short is None:
            short = self._shown[name] = name if _PLAIN.fullmatch(name) else _shorten(name)
        return f"%{short}"


def _shorten(name: str, digits: int = 4) -> str:
    """The last parts of ``name``, as many as fit, and a hash."""
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


def print_node(node: onnx_ir.Node, names: Names | None = None, *, types: Types | None = None) -> str:
    """The line of ``node``, without its bodies."""
    names, types = names or Names(), types or declared_type
    results = ", ".join(_typed(names(output), types(output)) for output in node.outputs)
    operands = [_operand(value, names) for value in node.inputs]
    for name in sorted(node.attributes) if node.attributes else ():
        text = attribute_text(node.attributes[name])
        if text is not None:
            operands.append(f"{name}={text}")
    return f"{results} = {_operator(node)}({', '.join(operands)})"


def _typed(name: str, kind: str | None) -> str:
    return name if kind is None or name == "_" else f"{name}: {kind}"


def _operator(node: onnx_ir.Node) -> str:
    domain = f"{node.domain}::" if node.domain else ""
    return f"{domain}{node.op_type}" + (f":{node.overload}" if node.overload else "")


def _operand(value: onnx_ir.Value | None, names: Names) -> str:
    if value is None:
        return "_"
    return inline_text(constant_of(value)) or names(value)


def print_neighbourhood(node: onnx_ir.Node) -> str:
    """``node`` and the nodes that it reads from, for messages."""
    names = Names(output.name or "" for output in node.outputs)
    producers = [value.producer() for value in node.inputs if value is not None]
    shown = [
        producer for producer in dict.fromkeys(producers) if producer is not None and producer is not node
    ]
    return "\n".join(f"{_INDENT}{_line(item, names, declared_type)}" for item in [*shown, node])


def _line(node: onnx_ir.Node, names: Names, types: Types) -> str:
    return print_node(node, names, types=types) + _comment([*node.outputs], names, node)


def _comment(values: Sequence[onnx_ir.Value], names: Names, node: onnx_ir.Node | None = None) -> str:
    """The original names that the line does not show."""
    hidden = [value.name for value in values if value.name and names(value) != f"%{value.name}"]
    name = node.name if node is not None else None
    if name and not any(value.name and value.name.startswith(name) for value in values):
        hidden.append(name if not hidden else f"({name})")
    if not hidden:
        return ""
    return _COMMENT + " ".join(json.dumps(text, ensure_ascii=False)[1:-1] for text in hidden)


def print_model(model: onnx_ir.Model, *, types: Types | None = None) -> str:
    """All of ``model``: header, main graph, functions.

    Args:
        types: the types to show, such as inferred ones; by default those that the model declares.
    """
    names, types = Names.of(model), types or declared_type
    lines = [f"ir {model.ir_version}, {_imports(model.opset_imports)}"]
    if model.producer_name:
        lines.append(f"producer {quoted(model.producer_name)} {quoted(model.producer_version or '')}")
    lines += _graph_lines(f"graph {quoted(model.graph.name or '')}", model.graph, names, types)
    for function in model.functions.values():
        lines += ["", *_function_lines(function, names, types)]
    return _joined(lines)


def print_graph(graph: onnx_ir.Graph, *, names: Names | None = None, types: Types | None = None) -> str:
    """``graph`` with its bodies."""
    if names is None:
        names = Names(name for nested in with_bodies(graph) for name in _value_names(nested))
    return _joined(_graph_lines(f"graph {quoted(graph.name or '')}", graph, names, types or declared_type))


def _joined(lines: Iterable[str]) -> str:
    """``lines`` as text. Names of operators, dims and domains may hold line breaks, which are escaped."""
    return "".join(f"{line if line.isprintable() else _escaped(line)}\n" for line in lines)


def _escaped(line: str) -> str:
    return "".join(char if char.isprintable() else char.encode("unicode_escape").decode() for char in line)


def _imports(imports: dict[str, int]) -> str:
    return ", ".join(f"{domain or 'ai.onnx'} {version}" for domain, version in imports.items())


def _function_lines(function: onnx_ir.Function, names: Names, types: Types) -> list[str]:
    overload = f":{function.overload}" if function.overload else ""
    attributes = []
    for attribute in function.attributes.values():
        default = attribute_text(attribute) if attribute.type != onnx_ir.AttributeType.UNDEFINED else None
        attributes.append(f"@{attribute.name}" + (f"={default}" if default is not None else ""))
    signature = f"({', '.join(attributes)})" if attributes else ""
    head = f"function {function.domain}::{function.name}{overload}{signature}"
    return _graph_lines(f"{head}, {_imports(function.opset_imports)}", function.graph, names, types)


def _graph_lines(head: str, graph: onnx_ir.Graph, names: Names, types: Types) -> list[str]:
    lines = [f"{head} {{"]
    pending = [_items(graph, names, types, _INDENT)]
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


def _items(graph: onnx_ir.Graph, names: Names, types: Types, indent: str) -> _Items:
    """Lines, and for each body the iterator of its lines."""
    for value in graph.inputs:
        tensor = value.const_value if value.is_initializer() else None
        default = "" if tensor is None else f" = {constant_text(tensor)}"
        yield f"{indent}input {_typed(names(value), types(value))}{default}{_comment([value], names)}"
    for value in graph.initializers.values():
        tensor = value.const_value
        if value.is_graph_input() or tensor is None:
            continue
        if not value.uses() or value.is_graph_output() or is_overridable(value) or not inline_text(tensor):
            yield f"{indent}constant {names(value)}: {constant_text(tensor)}{_comment([value], names)}"
    for node in graph:
        yield f"{indent}{_line(node, names, types)}"
        for attribute in node.attributes.values() if node.attributes else ():
            if attribute.is_ref():
                continue
            if attribute.type == onnx_ir.AttributeType.GRAPH:
                yield _body(attribute.name, attribute.value, names, types, indent + _INDENT)
            elif attribute.type == onnx_ir.AttributeType.GRAPHS:
                for index, body in enumerate(attribute.value):
                    yield _body(f"{attribute.name}[{index}]", body, names, types, indent + _INDENT)
    for value in graph.outputs:
        yield f"{indent}output {_typed(names(value), declared_type(value))}{_comment([value], names)}"


def _body(name: str, body: onnx_ir.Graph, names: Names, types: Types, indent: str) -> _Items:
    yield f"{indent}{name} {{"
    yield from _items(body, names, types, indent + _INDENT)
    yield f"{indent}}}"
