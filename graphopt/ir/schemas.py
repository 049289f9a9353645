"""What the standard asks of a node: how many inputs and outputs, which attributes, of what types.

Read off the schemas that onnx carries (ONNX Operators). onnxruntime does not hold to all of it,
so nothing is refused for it alone: it tells why passes could not make sense of a model.
Operators that onnx does not know, and deprecated ones, may be anything.
"""

from __future__ import annotations

import difflib
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from graphopt.ir._onnx_ir import onnx_ir
from graphopt.ir.provenance import label
from graphopt.ir.scopes import Scopes, graphs_of
from graphopt.util.tables import counted

if TYPE_CHECKING:
    import onnx

#: Domain of onnxruntime's contrib operators.
MICROSOFT = "com.microsoft"
#: Domains in which onnxruntime may prefer its own operator to a function of the same name in the model.
RUNTIME_DOMAINS = frozenset({"", "ai.onnx.ml", MICROSOFT})

#: Types of attributes that may travel packed, as strings.
_CARRIED = frozenset({"SPARSE_TENSOR", "SPARSE_TENSORS", "TYPE_PROTO", "TYPE_PROTOS"})


@lru_cache(maxsize=16384)
def operator_schema(domain: str, op_type: str, version: int) -> onnx.defs.OpSchema | None:
    """The operator's definition in force at opset ``version``; ``None`` if onnx knows none."""
    import onnx

    try:
        return onnx.defs.get_schema(op_type, version, domain)
    except (onnx.defs.SchemaError, TypeError, ValueError, UnicodeError):  # unknown, or no such version
        return None


def is_beyond_standard(domain: str, op_type: str, version: int) -> bool:
    """Whether an operator in the standard's domain is none of it, but one that onnxruntime adds there.

    onnxruntime (1.31) crashes on it in a function, as on the LayerNormalization of opset 16.
    """
    return domain == "" and operator_schema(domain, op_type, version) is None


@dataclass(frozen=True)
class Demands:
    """What an operator asks of its nodes.

    Attributes:
        least_inputs, most_inputs, least_outputs, most_outputs: counts, inclusive.
        single: indices of inputs that can't be left out.
        types: the type of each attribute, as in AttributeProto.
        required: attributes that a node must have.
    """

    least_inputs: int
    most_inputs: int
    least_outputs: int
    most_outputs: int
    single: tuple[int, ...]
    types: dict[str, int]
    required: tuple[str, ...]


def find_misuse(model: onnx_ir.Model) -> str | None:
    """The first node of ``model`` that does not have what its operator asks for, and what it is."""
    scopes = Scopes(model)
    for graph in graphs_of(model):
        imports = scopes.imports(graph)
        for node in graph:
            version = imports.get(node.domain)
            if version is None or node.op_identifier() in model.functions:
                continue
            fault = _misuse(node, version)
            if fault is not None:
                return f"{label(node)!r} {fault}"
    return None


def find_unknown(model: onnx_ir.Model) -> str | None:
    """The first node of ``model`` with an operator or attribute that the standard does not know; the nearest.

    Domains that onnx has no schemas of may hold anything.
    """
    scopes = Scopes(model)
    for graph in graphs_of(model):
        imports = scopes.imports(graph)
        for node in graph:
            version = imports.get(node.domain)
            known = _operators().get(node.domain)
            if version is None or known is None or node.op_identifier() in model.functions:
                continue
            unknown = _unknown(node, version, known)
            if unknown is not None:
                return f"{label(node)!r}: {unknown}"
    return None


def _unknown(node: onnx_ir.Node, version: int, known: dict[str, int]) -> str | None:
    """What of ``node`` is not among the operators ``known`` at ``version`` of its domain, if anything."""
    where = f"{node.domain or 'ai.onnx'} {version}"
    first = known.get(node.op_type)
    if first is None:
        there = [name for name, since in known.items() if since <= version]
        return f"no operator is called {node.op_type} in {where}{_nearest(node.op_type, there)}"
    if first > version:
        return f"{node.op_type} came with {node.domain or 'ai.onnx'} {first}, and the model imports {version}"
    schema = operator_schema(node.domain, node.op_type, version)
    if schema is None or schema.deprecated:
        return None
    for name in node.attributes:
        if name not in schema.attributes:
            return f"{node.op_type} has no attribute {name} in {where}{_nearest(name, [*schema.attributes])}"
    return None


def _nearest(name: str, known: Sequence[str]) -> str:
    found = difflib.get_close_matches(name, known, n=1)
    return f"; nearest: {found[0]}" if found else ""


@lru_cache(maxsize=1)
def _operators() -> dict[str, dict[str, int]]:
    """By domain, all operators with the version that they came with."""
    import onnx

    found: dict[str, dict[str, int]] = {}
    for schema in onnx.defs.get_all_schemas_with_history():
        names = found.setdefault(schema.domain, {})
        names[schema.name] = min(schema.since_version, names.get(schema.name, schema.since_version))
    return found


def _misuse(node: onnx_ir.Node, version: int) -> str | None:
    """What ``node`` lacks or has too much for its operator at ``version`` of its domain, if anything."""
    demands = _demands(node.op_type, node.domain, version)
    if demands is None:
        return None
    inputs, outputs = node.inputs, node.outputs
    if not demands.least_inputs <= len(inputs) <= demands.most_inputs:
        return f"has {counted(len(inputs), 'input')}, which {node.op_type} does not take"
    for index in demands.single:
        if inputs[index] is None:
            return f"leaves out input {index}, which {node.op_type} needs"
    if not demands.least_outputs <= len(outputs) <= demands.most_outputs:
        return f"has {counted(len(outputs), 'output')}, which {node.op_type} does not give"
    attributes = node.attributes
    for name in demands.required:
        if name not in attributes:
            return f"has no attribute {name!r}, which {node.op_type} needs"
    for name, attribute in attributes.items():
        wanted = demands.types.get(name)
        if wanted is not None and wanted != int(attribute.type) and not attribute.is_ref():
            return f"has attribute {name!r} of type {attribute.type.name}, which {node.op_type} does not take"
    return None


@lru_cache(maxsize=4096)
def _demands(op_type: str, domain: str, version: int) -> Demands | None:
    import onnx

    schema: Any = operator_schema(domain, op_type, version)
    if schema is None or schema.deprecated:
        return None
    single = onnx.defs.OpSchema.FormalParameterOption.Single
    return Demands(
        schema.min_input,
        schema.max_input,
        schema.min_output,
        schema.max_output,
        tuple(
            index
            for index, formal in enumerate(schema.inputs)
            if formal.option == single and index < schema.min_input
        ),
        {
            name: int(attribute.type.value)
            for name, attribute in schema.attributes.items()
            if attribute.type.name not in _CARRIED
        },
        tuple(name for name, attribute in schema.attributes.items() if attribute.required),
    )
