"""Element types of the results of onnxruntime's own operators, held to onnxruntime's schemas."""

from __future__ import annotations

import onnxruntime.capi.onnxruntime_pybind11_state as bindings

from graphopt import ir
from graphopt.ops.vendor_types import result_types
from tests.support import parse, run_pipeline

#: Of another type than the schema's where kernels only know one of two that are always equal.
_CLOSER = {"GridSample": [(0, 1)]}


def test_table_agrees_with_the_schemas_of_onnxruntime() -> None:
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
