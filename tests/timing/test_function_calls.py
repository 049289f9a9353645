"""The original nodes of kernels in calls of functions, in expanded operators, and of inserted Casts."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx.parser
import pytest

from graphopt import ir
from graphopt.ops.graphopt_operators import NATIVE_DOMAIN
from graphopt.ort.devices import CPU
from graphopt.timing.alternating_runs import Setup
from graphopt.timing.function_calls import give_calls_own_functions, nodes_within
from graphopt.timing.kernel_profile import KernelProfile

#: Nested functions, each called several times; ``twice`` is also called in a branch.
_FUNCTIONS = """<ir_version: 10, opset_import: ["" : 17, "f" : 1]>
g (float[16,16] x, bool c) => (float[16,16] y) {
  a = f.twice(x)
  b = If (c) <
    then_branch = t () => (float[16,16] p) { p = f.twice(a) },
    else_branch = e () => (float[16,16] q) { q = Neg(a) }
  >
  [last] y = f.twice(b)
}
<domain: "f", opset_import: ["" : 17, "f" : 1]>
twice (v) => (w) {
  s = f.step(v)
  [second] w = f.step(s)
}
<domain: "f", opset_import: ["" : 17]>
step (v) => (w) {
  t = MatMul(v, v)
  [sine] w = Sin(t)
}"""

_HALF = """<ir_version: 9, opset_import: ["" : 18]>
g (float16[N,16] x) => (float16[N,16] y) {
  a = MatMul(x, w)
  b = Softmax(a)
  c = MatMul(b, w)
  d = Mish(c)
  y = Softmax(d)
}"""


def _kernels(proto: onnx.ModelProto, folder: Path, **feeds: Any) -> dict[str, list[tuple[str, ...]]]:
    """The original nodes of all kernels, by operator."""
    path = folder / "m.onnx"
    onnx.save(proto, path)
    profile = KernelProfile.of("m", path, ir.load(path), Setup(feeds, None, CPU, 1))
    found: dict[str, list[tuple[str, ...]]] = {}
    for name, node in profile.nodes.items():
        if node.op_type != "If":
            found.setdefault(node.op_type, []).append(profile.originals.get(name, ()))
    return found


def test_kernels_in_nested_calls_are_mapped_to_nodes_of_each_call(tmp_path: Path) -> None:
    x = np.ones((16, 16), np.float32)
    found = _kernels(onnx.parser.parse_model(_FUNCTIONS), tmp_path, x=x, c=np.array(True))
    calls = [f"{call}/{step}" for call in ("twice(a)", "twice(p)", "last") for step in ("step(s)", "second")]
    assert sorted(found.pop("MatMul")) == sorted((f"{call}/MatMul(t)",) for call in calls)
    assert sorted(found.pop("Sin")) == sorted((f"{call}/sine",) for call in calls)
    assert found == {"Neg": [("Neg(q)",)]}


def test_inserted_casts_and_expanded_operators_of_unnamed_nodes_are_mapped(tmp_path: Path) -> None:
    proto = onnx.parser.parse_model(_HALF)
    proto.graph.initializer.append(onnx.numpy_helper.from_array(np.eye(16, dtype=np.float16), "w"))
    found = _kernels(proto, tmp_path, x=np.ones((4, 16), np.float16))
    assert found.pop("MatMul") == [("MatMul(a)",), ("MatMul(c)",)]
    casts = found.pop("Cast")
    assert ("MatMul(a)",) in casts and ("Softmax(y)",) in casts
    # the parts of Softmax and Mish
    assert {origins for kernels in found.values() for origins in kernels} == {
        ("Softmax(b)",),
        ("Softmax(y)",),
        ("Mish(d)",),
    }
    assert found["ReduceMax"] == [("Softmax(b)",), ("Softmax(y)",)]


@pytest.mark.parametrize("domain", ["", "com.microsoft", NATIVE_DOMAIN, "f"])
def test_functions_that_kernels_may_replace_keep_their_names(domain: str) -> None:
    proto = onnx.parser.parse_model(_FUNCTIONS)
    for node in nodes_within([*proto.graph.node, *(node for one in proto.functions for node in one.node)]):
        node.domain = node.domain and domain
    for function in proto.functions:
        function.domain = domain
    before = proto.SerializeToString()
    give_calls_own_functions(proto)
    assert (proto.SerializeToString() == before) == (domain != "f")
