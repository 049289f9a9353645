"""No rule creates an operator for CUDA without a kernel of its version and of all of its types.

``tests/placement/test_recorded_kernels.py`` compares the kernels with those of the installed wheel.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from functools import cache
from typing import Any

import onnx
import pytest
from onnx import TensorProto

from graphopt import ir
from graphopt.api import context_for
from graphopt.context import Context
from graphopt.ort.devices import Device
from graphopt.ort.recorded_kernels import Kernel, recorded
from tests.retyped_models import retyped
from tests.rules import rule_cases

CUDA = Device("cuda")
HALF, LOW, DOUBLE = TensorProto.FLOAT16, TensorProto.BFLOAT16, TensorProto.DOUBLE

#: The number of operators that the rules create at least, by type.
LEAST = {TensorProto.FLOAT: 15, HALF: 12, LOW: 10, DOUBLE: 10}


def _types(node: ir.Node, cx: Context) -> dict[str, str]:
    """The types of ``node`` by type parameter, as far as they are known."""
    schema = _schema(node, cx)
    formals = [
        *zip(schema.inputs, node.inputs, strict=False),
        *zip(schema.outputs, node.outputs, strict=False),
    ]
    return {
        formal.typeStr: f"tensor({dtype.name.lower()})"
        for formal, value in formals
        if value is not None and (dtype := cx.dtype(value)) is not None
    }


@cache
def _schemas() -> dict[tuple[str, str], list[Any]]:
    from onnxruntime.capi import onnxruntime_pybind11_state as state

    found: dict[tuple[str, str], list[Any]] = {}
    for schema in sorted(state.get_all_operator_schema(), key=lambda schema: schema.since_version):
        found.setdefault((schema.domain, schema.name), []).append(schema)
    return found


def _schema(node: ir.Node, cx: Context) -> Any:
    """The definition of the operator at the version of ``node``."""
    known = _schemas()[node.domain, node.op_type]
    return [schema for schema in known if schema.since_version <= cx.version(node)][-1]


def is_valid(model: onnx.ModelProto) -> bool:
    """Whether the operators are defined for their types."""
    loaded = ir.from_proto(model)
    cx = context_for(loaded)
    for graph in ir.graphs_of(loaded):
        for node in graph:
            if (node.domain, node.op_type) not in _schemas():
                continue  # a function of the model
            allowed = {
                one.type_param_str: one.allowed_type_strs for one in _schema(node, cx).type_constraints
            }
            if any(kind not in allowed.get(name, [kind]) for name, kind in _types(node, cx).items()):
                return False
    return True


def has_kernel(node: ir.Node, cx: Context) -> bool:
    """Whether CUDA has a kernel for the version of ``node`` and all of its types."""
    version, types = _schema(node, cx).since_version, _types(node, cx)

    def accepts(kernel: Kernel) -> bool:
        is_version = kernel.since <= version <= kernel.until
        return is_version and all(types.get(name) in (None, *accepted) for name, accepted in kernel.types)

    return any(map(accepts, recorded().kernels.get((node.domain, node.op_type), ())))


def is_function(node: ir.Node, cx: Context) -> bool:
    """Whether onnxruntime expands an operator without a kernel to operators that have kernels."""
    return node.domain == "" and onnx.defs.get_schema(node.op_type, cx.version(node)).has_function


def fused_nodes(model: ir.Model) -> Iterator[tuple[ir.Node, Context]]:
    cx = context_for(model)
    for graph in ir.graphs_of(model):
        yield from ((node, cx) for node in graph if ir.is_fused(node))


@pytest.mark.filterwarnings("ignore:overflow encountered:RuntimeWarning")  # constants in narrower types
@pytest.mark.parametrize("kind", [TensorProto.FLOAT, HALF, LOW, DOUBLE], ids=TensorProto.DataType.Name)
def test_fused_operators_have_kernels_of_their_types(kind: int) -> None:
    rules = rule_cases.rules_by_name()
    missing: list[str] = []
    created: Counter[str] = Counter()
    for path in rule_cases.case_files():
        if rules[rule_cases.rule_of(path)].pass_ != "fuse-builtin":
            continue
        case = rule_cases.read_case(path)
        before = retyped(case.before, kind)
        if not is_valid(before):
            continue
        given = {node.op_type for graph in ir.graphs_of(ir.from_proto(before)) for node in graph}
        for node, cx in fused_nodes(rule_cases.rewritten(case, before, CUDA)):
            if node.op_type in given:  # a change of an operator that the model contains
                continue
            created[node.op_type] += 1
            if not has_kernel(node, cx) and not is_function(node, cx):
                missing.append(f"{path.stem}: {node.op_type} of {_types(node, cx)}")
    assert not missing
    assert len(created) >= LEAST[kind], created
