"""Write ``graphopt/ort/cuda_kernels.txt``: the kernels of the installed wheel's CUDA provider.

Run ``python -m tests.placement.record_kernels`` from the root of the repository after a new release of onnxruntime.

The registry lists operators, versions and types. It does not list which arguments a kernel keeps in host memory, so
this is found from sessions: in a model with one node of the kernel, each argument is also read or written by a node
on the CPU, and the session copies exactly the arguments in device memory.
"""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import onnx

from graphopt.ort import recorded_kernels
from graphopt.ort.operator_schemas import Schema, schema_of
from graphopt.ort.recorded_kernels import Kernel
from graphopt.ort.target import all_kernels
from tests.placement import cuda_stand_in
from tests.placement.cuda_sessions import copied_tensors

Key = tuple[str, str]

_PROVIDER = "CUDAExecutionProvider"
_TABLE = Path(recorded_kernels.__file__).with_name("cuda_kernels.txt")
_PREFERRED = ("float", "int64", "int32", "bool", "float16", "double", "uint8", "int8")
#: The first opset in which Cast, the node on the CPU, produces strings.
_FIRST_OPSET = 9
_NONE: tuple[frozenset[int], frozenset[int]] = frozenset(), frozenset()
_COPIES = ("MemcpyFromHost", "MemcpyToHost")
#: Attributes without which a kernel can't be created, beside those that the schema requires.
_ATTRIBUTES: dict[str, dict[str, Any]] = {
    "LSTM": {"hidden_size": 1},
    "RNN": {"hidden_size": 1},
    "GRU": {"hidden_size": 1, "linear_before_reset": 1},
    "FusedConv": {"activation": "Relu"},
    "MatMulNBits": {"K": 32, "N": 32, "bits": 4, "block_size": 32},
    "LabelEncoder": {"keys_int64s": [1], "values_floats": [1.0]},
}
#: The number of inputs or outputs, where others require shapes, or attributes that exclude each other.
_INPUTS = {"MatMulNBits": 3, "SparseAttention": 9, "LSTM": 7}
_OUTPUTS = {"BatchNormalization": 1, "MultiHeadAttention": 1, "DecoderMaskedMultiHeadAttention": 1}


def main() -> None:
    """Build the libraries, and write the table in a process that uses them."""
    if "--print" in sys.argv:
        sys.stdout.write(table())
        return
    with tempfile.TemporaryDirectory() as folder:
        cuda_stand_in.build(Path(folder))
        text = cuda_stand_in.run(Path(folder), "tests.placement.record_kernels", "--print")
    _TABLE.write_text(text, encoding="utf-8")


def table() -> str:
    """The contents of the table."""
    import onnxruntime

    found: list[tuple[Key, Kernel]] = []
    for key, kernels in all_kernels(_PROVIDER).items():
        if key[1] in _COPIES or key[0].startswith("com.ms.internal"):
            continue
        for kernel in _merged(kernels):
            found.append((key, Kernel(kernel.since, kernel.until, kernel.types, *_memory(key, kernel))))
    return recorded_kernels.text(onnxruntime.__version__, found)


def _merged(kernels: Iterable[Kernel]) -> list[Kernel]:
    """Kernels of one operator; those of the same versions that differ in one type parameter are joined."""
    merged: list[Kernel] = []
    for kernel in kernels:
        for index, other in enumerate(merged):
            if (joined := _joined(kernel, other)) is not None:
                merged[index] = joined
                break
        else:
            merged.append(kernel)
    return merged


def _joined(one: Kernel, other: Kernel) -> Kernel | None:
    a, b = dict(one.types), dict(other.types)
    if (one.since, one.until) != (other.since, other.until) or a.keys() != b.keys():
        return None
    different = [name for name in a if a[name] != b[name]]
    if len(different) > 1:
        return None
    return Kernel(one.since, one.until, tuple((name, a[name] | b[name]) for name in sorted(a)))


def _memory(key: Key, kernel: Kernel) -> tuple[frozenset[int], frozenset[int]]:
    """The inputs and outputs in host memory; none if no session of such a node can be created."""
    domain, op_type = key
    version = max(kernel.since, _FIRST_OPSET) if not domain else kernel.since
    schema = schema_of(op_type, domain, version)
    if schema is None or not kernel.since <= schema.since <= kernel.until:
        return _NONE
    try:
        model, inputs, outputs = _model(key, kernel, schema, version)
        copied = copied_tensors(model, "probe")
    except Exception:  # onnxruntime's errors have no common base class
        return _NONE
    return (
        frozenset(index for index in inputs if f"i{index}" not in copied),
        frozenset(index for index in outputs if f"o{index}" not in copied),
    )


def _model(
    key: Key, kernel: Kernel, schema: Schema, version: int
) -> tuple[onnx.ModelProto, list[int], list[int]]:
    """A model with one node, and the indices of its inputs and outputs that nodes on the CPU read as well."""
    domain, op_type = key
    inputs = [_type(one.type, one.name, kernel, key, schema) for one in schema.inputs[: _INPUTS.get(op_type)]]
    outputs = [
        _type(one.type, one.name, kernel, key, schema) for one in schema.outputs[: _OUTPUTS.get(op_type)]
    ]
    names = [f"i{index}" for index in range(len(inputs))], [f"o{index}" for index in range(len(outputs))]
    helper = onnx.helper
    if op_type in ("If", "Loop", "Scan"):
        node, inputs, names = _control_flow(op_type)
    else:
        attributes = dict(_required(domain, op_type, schema)) | _ATTRIBUTES.get(op_type, {})
        node = helper.make_node(op_type, *names, name="probe", domain=domain, **attributes)
    nodes, results = [node], []
    tensors = [
        [index for index, type in enumerate(types) if type.startswith("tensor(")]
        for types in (inputs, outputs)
    ]
    if op_type in ("If", "Loop", "Scan"):
        tensors[1] = [0]
    for prefix, indices in zip("io", tensors, strict=True):
        for index in indices:
            nodes.append(
                helper.make_node(
                    "Cast", [f"{prefix}{index}"], [f"s{prefix}{index}"], to=onnx.TensorProto.STRING
                )
            )
            results.append(helper.make_tensor_value_info(f"s{prefix}{index}", onnx.TensorProto.STRING, None))
    graph = helper.make_graph(
        nodes,
        "g",
        [helper.make_value_info(*pair) for pair in zip(names[0], map(_proto, inputs), strict=True)],
        results,
    )
    imports = [helper.make_opsetid("", version if not domain else 17)]
    if domain:
        imports.append(helper.make_opsetid(domain, version))
    return helper.make_model(graph, ir_version=10, opset_imports=imports), *tensors


def _type(own: str, name: str, kernel: Kernel, key: Key, schema: Schema) -> str:
    accepted = dict(kernel.types).get(own) or dict(kernel.types).get(name)
    if accepted is None:
        accepted = frozenset({own}) if "(" in own else _allowed(key, schema, own)
    preferred = [
        f"{before}{type}{after}"
        for type in _PREFERRED
        for before, after in (("tensor(", ")"), ("seq(tensor(", "))"))
    ]
    return next((type for type in preferred if type in accepted), min(accepted))


def _allowed(key: Key, schema: Schema, parameter: str) -> frozenset[str]:
    constraints = _definition(key, schema).type_constraints
    return frozenset(next(one.allowed_type_strs for one in constraints if one.type_param_str == parameter))


def _required(domain: str, op_type: str, schema: Schema) -> Iterator[tuple[str, Any]]:
    values = {"INT": 1, "INTS": [1], "FLOAT": 1.0, "FLOATS": [1.0], "STRING": "x", "STRINGS": ["x"]}
    for name, attribute in _definition((domain, op_type), schema).attributes.items():
        if attribute.required:
            yield name, values[str(attribute.type).rpartition(".")[2]]


def _definition(key: Key, schema: Schema) -> Any:
    from onnxruntime.capi import onnxruntime_pybind11_state as state

    return next(
        one
        for one in state.get_all_operator_schema()
        if (one.domain, one.name, one.since_version) == (*key, schema.since)
    )


def _control_flow(op_type: str) -> tuple[onnx.NodeProto, list[str], tuple[list[str], list[str]]]:
    """A node with a body, the types of its inputs, and the names of its inputs and outputs."""
    bodies = {
        "If": ("() => (float y) <float one = {1.0}> { y = Identity(one) }", ["tensor(bool)"]),
        "Loop": (
            "(int64 i, bool c, float[N] a) => (bool d, float[N] y) { d = Identity(c) y = Identity(a) }",
            ["tensor(int64)", "tensor(bool)", "tensor(float)"],
        ),
        "Scan": ("(float[N] a) => (float[N] y) { y = Identity(a) }", ["tensor(float)"]),
    }
    text, types = bodies[op_type]
    body = onnx.parser.parse_graph(f"g {text}")
    if op_type == "If":
        attributes: dict[str, Any] = {"then_branch": body, "else_branch": body}
    else:
        attributes = {"body": body} | ({"num_scan_inputs": 1} if op_type == "Scan" else {})
    names = [f"i{index}" for index in range(len(types))], ["o0"]
    return onnx.helper.make_node(op_type, *names, name="probe", **attributes), types, names


def _proto(type: str) -> onnx.TypeProto:
    helper = onnx.helper
    if type.startswith("seq("):
        return helper.make_sequence_type_proto(_proto(type[4:-1]))
    element = onnx.TensorProto.DataType.Value(type.removeprefix("tensor(").removesuffix(")").upper())
    return helper.make_tensor_type_proto(element, None)


if __name__ == "__main__":
    main()
