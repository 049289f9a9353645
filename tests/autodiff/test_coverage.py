"""Coverage of the standard's operators by gradient rules."""

from __future__ import annotations

from collections.abc import Iterator

from onnx import defs

from graphopt.autodiff.rule_registry import Gradient, find

#: The newest opset that onnxruntime reads.
OPSET = 26


def of_floats() -> Iterator[defs.OpSchema]:
    """The standard's operators with floating-point inputs and outputs."""
    newest: dict[str, defs.OpSchema] = {}
    for schema in defs.get_all_schemas_with_history():
        if schema.domain == "" and schema.since_version <= OPSET:
            known = newest.get(schema.name)
            if known is None or known.since_version < schema.since_version:
                newest[schema.name] = schema
    for schema in newest.values():
        real = [any("float" in name or "double" in name for name in port.types) for port in schema.inputs]
        results = [any("float" in name or "double" in name for name in port.types) for port in schema.outputs]
        if any(real) and any(results) and not schema.deprecated:
            yield schema


def test_each_floating_point_operator_has_a_gradient_or_a_reason() -> None:
    own, spelt, missing = 0, 0, []
    for schema in of_floats():
        rule = find("", schema.name, OPSET)
        if isinstance(rule, Gradient):
            own += 1
        elif rule is None and (schema.has_function or schema.has_context_dependent_function):
            spelt += 1
        elif rule is None:
            missing.append(schema.name)
    assert not missing
    assert own >= 140 and spelt >= 2
