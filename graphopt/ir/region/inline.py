"""Inline: replace a call by the body of its function."""

from __future__ import annotations

from graphopt.errors import UnsupportedModel
from graphopt.ir._onnx_ir_without_sympy import onnx_ir
from graphopt.ir.editor.editor import Editor
from graphopt.ir.nested_graphs import bodies, normal_imports, walk_nodes
from graphopt.ir.provenance import label, origins_within
from graphopt.ir.region.clone import Cloner
from graphopt.ir.schema_checks import RUNTIME_DOMAINS, operator_schema

#: Maximum characters of the call's name in the names of inlined values.
_PREFIX = 80


def inline_obstacle(edit: Editor, call: onnx_ir.Node) -> str | None:
    """The reason why ``call`` can't be inlined; ``None`` if it can."""
    function = edit.model.functions.get(call.op_identifier())
    if function is None:
        return "it calls no function of the model"
    if call.graph is None:
        return "it is in no graph"
    if call.domain in RUNTIME_DOMAINS:
        return f"onnxruntime may run its own operator {call.op_type} instead"
    if len(call.inputs) > len(function.inputs) or len(call.outputs) > len(function.outputs):
        return f"it has more inputs or outputs than function {function.name}"
    given = dict(zip(function.inputs, call.inputs, strict=False))
    for output in function.outputs[: len(call.outputs)]:
        if output.is_graph_input() and given.get(output) is None:
            return f"output {output.name!r} of function {function.name} is an input that it omits"
    return _clash_of_defaults(edit, call, function) or _clash_of_opsets(edit, call.graph, function)


def _clash_of_defaults(edit: Editor, call: onnx_ir.Node, function: onnx_ir.Function) -> str | None:
    """The reason why a reference can't be inlined: the callee has a default for a missing attribute."""
    assert call.graph is not None
    caller = edit.scopes.function(call.graph)
    for attribute in call.attributes.values():
        if not attribute.is_ref() or caller is None:
            continue
        passed, default = (
            caller.attributes.get(attribute.ref_attr_name or ""),
            function.attributes.get(attribute.name),
        )
        if default is not None and default.value is not None and (passed is None or passed.value is None):
            return f"attribute {attribute.name!r} has a default, and {caller.name} may be called without it"
    return None


def _clash_of_opsets(edit: Editor, graph: onnx_ir.Graph, function: onnx_ir.Function) -> str | None:
    """The reason why an operator of ``function`` would have other semantics in ``graph``, or ``None``."""
    here, there = normal_imports(edit.scopes.imports(graph)), normal_imports(function.opset_imports)
    for domain in there:
        if here.get(domain, there[domain]) == there[domain]:
            continue
        for node in walk_nodes(function.graph):
            if node.domain != domain or node.op_identifier() in edit.model.functions:
                continue
            if not _same_definition(domain, node.op_type, here[domain], there[domain]):
                name = domain or "ai.onnx"
                return f"{node.op_type} of {name} {there[domain]} is not that of {name} {here[domain]}"
    return None


def _same_definition(domain: str, op_type: str, one: int, other: int) -> bool:
    """Whether the operator is the same in two versions of its domain."""
    first, second = operator_schema(domain, op_type, one), operator_schema(domain, op_type, other)
    return first is not None and second is not None and first.since_version == second.since_version


def inline_call(edit: Editor, call: onnx_ir.Node, *, prefixed: bool = True) -> list[onnx_ir.Node]:
    """Replace ``call`` by the body of the function that it calls; returns the new nodes.

    References to attributes are replaced by the call's attributes or the function's defaults, or removed.
    Domains that the function imports are imported in the graph of the call.

    Args:
        edit: the model's editor.
        call: the call.
        prefixed: whether new names begin with the name of the call. Otherwise outlining is undone: the
            function's
            names are kept if unused, and outputs of the graph have their former declarations.

    Raises:
        UnsupportedModel: see :func:`inline_obstacle`.
    """
    obstacle = inline_obstacle(edit, call)
    if obstacle is not None:
        raise UnsupportedModel(f"{label(call)!r} can't be inlined: {obstacle}")
    function = edit.model.functions[call.op_identifier()]
    assert call.graph is not None
    prefix = (call.name or call.op_type)[:_PREFIX]

    def named(name: str) -> str:
        return f"{prefix}/{name.lstrip('/')}" if prefixed else name

    inputs = [*call.inputs, *[None] * (len(function.inputs) - len(call.inputs))]
    copier = Cloner(
        dict(zip(function.inputs, inputs, strict=True)),
        _attributes(function, call),
        value_name=lambda name: edit.fresh_name(named(name)),
        node_name=lambda name: edit.fresh_node_name(named(name)),
        declarations=False,
        origin=lambda node: origins_within(node, call),
    )
    made = copier.nodes(function.graph)
    edit.insert_before(call, made)
    imports = edit.scopes.imports(call.graph)
    here = normal_imports(imports)
    for domain, version in normal_imports(function.opset_imports).items():
        if domain not in here:
            imports[domain] = version
    fresh = {output for node in made for output in node.outputs}
    for old, formal in zip(call.outputs, function.outputs, strict=False):
        new = copier.value(formal)
        if new is None or not (old.uses() or old.is_graph_output()):
            continue
        was_output = old.is_graph_output()
        edit.replace(old, new, restores=not prefixed and new in fresh)
        if new in fresh and not was_output:
            edit.transfer_name(new, old)
        fresh.discard(new)
    for body in bodies(call):
        edit.clear_body(body)
    edit.remove(call)
    return made


def _attributes(function: onnx_ir.Function, call: onnx_ir.Node) -> dict[str, onnx_ir.Attr | None]:
    given: dict[str, onnx_ir.Attr | None] = {
        name: attribute if attribute.value is not None else None
        for name, attribute in function.attributes.items()
    }
    return {**given, **call.attributes}
