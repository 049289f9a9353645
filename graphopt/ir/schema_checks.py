"""Check nodes against the operator schemas of onnx: inputs, outputs, attributes and their types.

onnxruntime is more permissive, so violations alone are no reason to reject a model. Violations explain why
passes could not interpret a model. Deprecated operators, and operators without a schema, are not checked.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from graphopt.errors import nearest_names
from graphopt.ir._onnx_ir_without_sympy import onnx_ir
from graphopt.ir.nested_graphs import Scopes, graphs_of
from graphopt.ir.provenance import label
from graphopt.util.lazy_dataclass import dataclass
from graphopt.util.text_tables import counted

if TYPE_CHECKING:
    import onnx

#: Domain of onnxruntime's contrib operators.
MICROSOFT = "com.microsoft"
#: Domains in which onnxruntime may prefer its own operator to a function of the same name in the model.
RUNTIME_DOMAINS = frozenset({"", "ai.onnx.ml", MICROSOFT})

#: Types of attributes that may be packed as strings.
_OPAQUE = frozenset({"SPARSE_TENSOR", "SPARSE_TENSORS", "TYPE_PROTO", "TYPE_PROTOS"})


@lru_cache(maxsize=16384)
def operator_schema(domain: str, op_type: str, version: int) -> onnx.defs.OpSchema | None:
    """The operator's schema in opset ``version``; ``None`` without a schema."""
    import onnx

    try:
        return onnx.defs.get_schema(op_type, version, domain)
    except (onnx.defs.SchemaError, TypeError, ValueError, UnicodeError):  # unknown, or no such version
        return None


def is_beyond_standard(domain: str, op_type: str, version: int) -> bool:
    """Whether an operator in the standard domain is an extension by onnxruntime.

    onnxruntime 1.31 crashes on such operators in functions, for instance on LayerNormalization in opset 16.
    """
    return domain == "" and operator_schema(domain, op_type, version) is None


@dataclass(frozen=True)
class Requirements:
    """Requirements of an operator on its nodes.

    Attributes:
        least_inputs, most_inputs, least_outputs, most_outputs: counts, inclusive.
        single: indices of inputs that can't be omitted.
        types: the type of each attribute, as in AttributeProto.
        required: names of required attributes.
    """

    least_inputs: int
    most_inputs: int
    least_outputs: int
    most_outputs: int
    single: tuple[int, ...]
    types: dict[str, int]
    required: tuple[str, ...]


def find_misuse(model: onnx_ir.Model) -> str | None:
    """A description of the first node of ``model`` that violates its operator's schema, or ``None``."""
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
    """A description of the first unknown operator or attribute, with the nearest name, or ``None``.

    Domains without schemas are not checked.
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
    """The operator or attribute of ``node`` that is not among ``known``, or ``None``."""
    where = f"{node.domain or 'ai.onnx'} {version}"
    first = known.get(node.op_type)
    if first is None:
        there = [name for name, since in known.items() if since <= version]
        return f"{where} has no operator {node.op_type}{_nearest(node.op_type, there)}"
    if first > version:
        return f"{node.op_type} needs {node.domain or 'ai.onnx'} {first}, and the model imports {version}"
    schema = operator_schema(node.domain, node.op_type, version)
    if schema is None or schema.deprecated:
        return None
    for name in node.attributes:
        if name not in schema.attributes:
            return f"{node.op_type} has no attribute {name} in {where}{_nearest(name, [*schema.attributes])}"
    return None


def _nearest(name: str, known: Sequence[str]) -> str:
    found = nearest_names(name, known)
    return f"; nearest: {found[0]}" if found else ""


@lru_cache(maxsize=1)
def _operators() -> dict[str, dict[str, int]]:
    """All operators by domain, each with the first version that has it."""
    import onnx

    found: dict[str, dict[str, int]] = {}
    for schema in onnx.defs.get_all_schemas_with_history():
        names = found.setdefault(schema.domain, {})
        names[schema.name] = min(schema.since_version, names.get(schema.name, schema.since_version))
    return found


def _misuse(node: onnx_ir.Node, version: int) -> str | None:
    """The violation of the operator's schema by ``node``, or ``None``."""
    requirements = _requirements(node.op_type, node.domain, version)
    if requirements is None:
        return None
    inputs, outputs = node.inputs, node.outputs
    if not requirements.least_inputs <= len(inputs) <= requirements.most_inputs:
        return f"has {counted(len(inputs), 'input')}, a number that {node.op_type} does not support"
    for index in requirements.single:
        if inputs[index] is None:
            return f"omits input {index}, which {node.op_type} requires"
    if not requirements.least_outputs <= len(outputs) <= requirements.most_outputs:
        return f"has {counted(len(outputs), 'output')}, a number that {node.op_type} does not support"
    attributes = node.attributes
    for name in requirements.required:
        if name not in attributes:
            return f"has no attribute {name!r}, which {node.op_type} requires"
    for name, attribute in attributes.items():
        wanted = requirements.types.get(name)
        if wanted is not None and wanted != int(attribute.type) and not attribute.is_ref():
            return (
                f"has attribute {name!r} of type {attribute.type.name}, which {node.op_type} does not support"
            )
    return None


@lru_cache(maxsize=4096)
def _requirements(op_type: str, domain: str, version: int) -> Requirements | None:
    import onnx

    schema: Any = operator_schema(domain, op_type, version)
    if schema is None or schema.deprecated:
        return None
    single = onnx.defs.OpSchema.FormalParameterOption.Single
    return Requirements(
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
            if attribute.type.name not in _OPAQUE
        },
        tuple(name for name, attribute in schema.attributes.items() if attribute.required),
    )
