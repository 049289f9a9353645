"""Defaults of the attributes of onnxruntime's own operators, held to onnxruntime's schemas."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import onnxruntime.capi.onnxruntime_pybind11_state as bindings

from graphopt import ir
from graphopt.ops import traits, vendor_attributes


def _in_runtime(domain: str) -> dict[str, dict[str, Any]]:
    """The defaults in the schemas of ``domain`` that onnxruntime has, by operator."""
    found: dict[str, dict[str, Any]] = {}
    for schema in bindings.get_all_operator_schema():
        if schema.domain == domain:
            protos = {name: attribute._default_value for name, attribute in schema.attributes.items()}
            found[schema.name] = {
                name: onnx.helper.get_attribute_value(onnx.AttributeProto.FromString(proto))
                for name, proto in protos.items()
                if proto
            }
    return found


def _plain(value: Any) -> Any:
    return value.decode() if isinstance(value, bytes) else value


def test_table_agrees_with_the_schemas_of_onnxruntime() -> None:
    for op_type, attributes in _in_runtime(ir.MICROSOFT).items():
        if op_type in traits.VENDOR_DETERMINISTIC:
            told = {name: traits.default_attribute(ir.MICROSOFT, op_type, 1, name) for name in attributes}
            assert told == {name: _plain(value) for name, value in attributes.items()}, op_type


def test_table_has_no_attribute_that_onnxruntime_does_not_know() -> None:
    runtime = _in_runtime(ir.MICROSOFT)
    for op_type, attributes in vendor_attributes.IN_SCHEMAS.items():
        assert attributes.keys() <= runtime[op_type].keys(), op_type


def test_operators_in_the_standard_domain() -> None:
    runtime = _in_runtime("")
    for op_type, attributes in vendor_attributes.IN_STANDARD_DOMAIN.items():
        for name in attributes:
            assert traits.default_attribute("", op_type, 9, name) == runtime[op_type][name]


def test_defaults_of_kernels() -> None:
    assert traits.default_attribute(ir.MICROSOFT, "MultiHeadAttention", 1, "mask_filter_value") == -10000.0
    assert traits.default_attribute(ir.MICROSOFT, "FusedMatMul", 1, "alpha") == 1.0
    epsilon = traits.default_attribute(ir.MICROSOFT, "SkipLayerNormalization", 1, "epsilon")
    assert epsilon == float(np.float32(1e-12))
    assert traits.default_attribute("com.example", "FusedMatMul", 1, "alpha") is None
