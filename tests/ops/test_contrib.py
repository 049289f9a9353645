"""Tables of onnxruntime's contrib operators, compared with onnxruntime's schemas."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import onnxruntime.capi.onnxruntime_pybind11_state as bindings

from graphopt import ir
from graphopt.ops import contrib, traits
from graphopt.ops.contrib import result_types
from tests.model_testing import parse, run_pipeline

#: Types other than the schema's, if kernels support only one of two types that are always equal.
_CLOSER = {"GridSample": [(0, 1)]}


def test_result_types_match_the_schemas_of_onnxruntime() -> None:
    compared = 0
    for schema in bindings.get_all_operator_schema():
        if schema.domain != ir.MICROSOFT:
            continue
        types = {item.type_param_str: list(item.allowed_type_strs) for item in schema.type_constraints}
        mixed = {item.typeStr for item in (*schema.inputs, *schema.outputs) if not item.isHomogeneous}
        expected: list[str | tuple[int, ...]] = []
        for output in schema.outputs:
            allowed = types.get(output.typeStr, [output.typeStr])
            same = tuple(k for k, item in enumerate(schema.inputs) if item.typeStr == output.typeStr)
            one = allowed[0].removeprefix("tensor(").removesuffix(")")
            expected.append(one if len(allowed) == 1 else () if output.typeStr in mixed else same)
        found = result_types(schema.name)
        assert found == _CLOSER.get(schema.name, expected if any(expected) else []), schema.name
        compared += bool(found)
    assert compared > 100


def test_facts_of_operators_without_and_with_a_shape_rule() -> None:
    model = parse(
        """m (float16[N,4] x, uint8[1,2,8] w, float[3,B,2] s, float z) => (float16 a, float16 m, float y) {
            a = com.microsoft.Rfft <onesided = 1, signal_ndim = 1> (x)
            p, q = com.microsoft.NGramHashMapping (x, x, x)
            y, h, c = com.microsoft.DynamicQuantizeLSTM <hidden_size = 2> (s, w, w, , , , , , z, z, z, z)
            m = com.microsoft.MoE <k = 1> (x, x, x, , x)
        }""",
        domains=', "com.microsoft" : 1',
    )
    _, cx = run_pipeline(model, "dce")
    values = {output.name: output for node in model.graph for output in node.outputs}
    assert cx.dtype(values["a"]) == ir.DataType.FLOAT16
    assert list(map(str, cx.shape(values["m"]) or ())) == ["N", "4"]
    assert list(map(str, cx.shape(values["y"]) or ())) == ["3", "1", "B", "2"]
    assert cx.dtype(values["c"]) == ir.DataType.FLOAT


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


def test_attribute_defaults_match_the_schemas_of_onnxruntime() -> None:
    for op_type, attributes in _in_runtime(ir.MICROSOFT).items():
        if op_type in traits.VENDOR_DETERMINISTIC:
            found = {name: traits.default_attribute(ir.MICROSOFT, op_type, 1, name) for name in attributes}
            assert found == {name: _plain(value) for name, value in attributes.items()}, op_type


def test_attribute_defaults_exist_in_onnxruntime() -> None:
    runtime = _in_runtime(ir.MICROSOFT)
    for op_type, attributes in contrib.IN_SCHEMAS.items():
        assert attributes.keys() <= runtime[op_type].keys(), op_type


def test_attribute_defaults_in_the_standard_domain() -> None:
    runtime = _in_runtime("")
    for op_type, attributes in contrib.IN_STANDARD_DOMAIN.items():
        for name in attributes:
            assert traits.default_attribute("", op_type, 9, name) == runtime[op_type][name]


def test_attribute_defaults_of_kernels() -> None:
    assert traits.default_attribute(ir.MICROSOFT, "MultiHeadAttention", 1, "mask_filter_value") == -10000.0
    assert traits.default_attribute(ir.MICROSOFT, "FusedMatMul", 1, "alpha") == 1.0
    epsilon = traits.default_attribute(ir.MICROSOFT, "SkipLayerNormalization", 1, "epsilon")
    assert epsilon == float(np.float32(1e-12))
    assert traits.default_attribute("com.example", "FusedMatMul", 1, "alpha") is None
