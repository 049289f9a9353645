"""inline-functions: all functions, some functions, nested calls, bodies; and calls that stay."""

from __future__ import annotations

import numpy as np
import pytest

from graphopt import ir
from graphopt.context import Action, Observer, Refusal
from graphopt.errors import UsageError
from graphopt.transforms.functions import inline_functions
from tests.ir.models import run
from tests.model_testing import ops, parse, run_pipeline

MODEL = """<ir_version: 8, opset_import: ["" : 17, "local" : 1, "other" : 1]>
g (float[N,4] x, bool c) => (float[N,4] y) {
    a = local.Outer<alpha = 0.25>(x)
    y = If (c) <
        then_branch = t () => (float[N,4] t1) { t1 = local.Inner<alpha = 0.5>(a) },
        else_branch = e () => (float[N,4] e1) { e1 = other.Inner(a) }
    >
}
<domain: "local", opset_import: ["" : 17, "local" : 1]>
Outer <alpha> (p) => (q) { b = Neg(p) d = local.Inner<alpha: float = @alpha>(b) q = local.Inner(d) }
<domain: "local", opset_import: ["" : 17]>
Inner <alpha: float = 0.75> (p) => (q) { q = LeakyRelu<alpha: float = @alpha>(p) }
<domain: "other", opset_import: ["" : 17]>
Inner (p) => (q) { q = Abs(p) }
<domain: "other", opset_import: ["" : 17]>
Uncalled (p) => (q) { q = Exp(p) }
"""
X = np.linspace(-2, 2, 8, dtype=np.float32).reshape(2, 4)


def _inlined(pipeline: str, text: str = MODEL) -> ir.Model:
    model = parse(text)
    feeds = {"x": X, **({"c": np.array(True)} if "bool c" in text else {})}
    expected = run(ir.to_bytes(model), **feeds)
    run_pipeline(model, pipeline)
    ir.validate(model)
    np.testing.assert_array_equal(run(ir.to_bytes(model), **feeds)[0], expected[0])
    return model


def _calls(model: ir.Model) -> list[str]:
    nodes = [node for graph in ir.graphs_of(model) for node in graph]
    return [f"{node.domain}::{node.op_type}" for node in nodes if node.domain]


def test_calls_in_bodies_and_nested_calls_are_inlined() -> None:
    model = _inlined("inline-functions")
    assert not model.functions and not _calls(model)
    assert ops(model) == ["Neg", "LeakyRelu", "LeakyRelu", "If"]
    assert [node.attributes["alpha"].value for node in list(model.graph)[1:3]] == [0.25, 0.75]


def test_only_some_functions() -> None:
    model = _inlined("inline-functions{only=Inner}")
    assert [name for _, name, _ in model.functions] == ["Outer", "Inner"]
    # one call stays: in Outer, whose alpha may be absent, the default of Inner would be lost
    assert _calls(model) == ["local::Outer", "local::Inner"]

    model = _inlined("inline-functions{only=other::Inner}")
    assert [name for _, name, _ in model.functions] == ["Outer", "Inner"]
    assert "other::Inner" not in _calls(model)

    model = _inlined("inline-functions{only=Outer}")
    assert "local::Outer" not in _calls(model)
    assert _calls(model).count("local::Inner") == 3


def test_call_whose_opset_differs_stays_with_a_reason() -> None:
    text = """<ir_version: 8, opset_import: ["" : 17, "local" : 1]>
    g (float[N,4] x) => (float[N,4] y) { a = local.Old(x) y = local.New(a) }
    <domain: "local", opset_import: ["" : 12, "local" : 1]> Old (p) => (q) { a = Softmax(p) q = local.New(a) }
    <domain: "local", opset_import: ["" : 17]> New (p) => (q) { q = Neg(p) }"""
    seen: list[tuple[str, str]] = []

    class Refusals(Observer):
        def refused(self, refusal: Refusal) -> None:
            seen.append((refusal.node, refusal.reason))

    model = parse(text)
    expected = run(ir.to_bytes(model), x=X)
    run_pipeline(model, "inline-functions", observers=(Refusals(),))
    np.testing.assert_array_equal(run(ir.to_bytes(model), x=X)[0], expected[0])
    assert ops(model) == ["Old", "Neg"]
    assert ("Old(a)", "Softmax of ai.onnx 12 is not that of ai.onnx 17") in seen


def test_gate_is_called_for_each_function_call() -> None:
    asked: list[Action] = []

    def gate(action: Action) -> bool:
        asked.append(action)
        return len(asked) != 1

    model = parse(MODEL)
    run_pipeline(model, "inline-functions", gate=gate)
    ir.validate(model)
    assert ops(model)[0] == "Outer"
    assert ("local", "Outer", "") in model.functions
    assert {action.owner for action in asked} == {"inline-functions"}


def test_functions_that_would_explode_are_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    levels = "".join(
        f'<domain: "local", opset_import: ["" : 17, "local" : 1]> F{i} (p) => (q) {{ a = local.F{i + 1}(p) q = local.F{i + 1}(a) }}'
        for i in range(60)
    )
    last = '<domain: "local", opset_import: ["" : 17]> F60 (p) => (q) { q = Neg(p) }'
    text = f"""<ir_version: 8, opset_import: ["" : 17, "local" : 1]>
    g (float[N,4] x) => (float[N,4] y) {{ y = local.F0(x) }} {levels} {last}"""
    model = parse(text)
    run_pipeline(model, "inline-functions")
    assert ops(model) == ["F0"] and len(model.functions) == 61
    monkeypatch.setattr(inline_functions, "_MAX_NODES", 3)
    model = parse(MODEL)
    run_pipeline(model, "inline-functions")
    assert ops(model) == ["Outer", "If"]


def test_a_long_chain_of_functions() -> None:
    depth = 1500
    levels = "".join(
        f'<domain: "local", opset_import: ["" : 17, "local" : 1]> F{i} (p) => (q) {{ a = Neg(p) q = local.F{i + 1}(a) }}'
        for i in range(depth)
    )
    last = f'<domain: "local", opset_import: ["" : 17]> F{depth} (p) => (q) {{ q = Neg(p) }}'
    model = parse(
        f"""<ir_version: 8, opset_import: ["" : 17, "local" : 1]>
        g (float[N,4] x) => (float[N,4] y) {{ y = local.F0(x) }} {levels} {last}"""
    )
    run_pipeline(model, "inline-functions")
    ir.validate(model)
    assert ops(model) == ["Neg"] * (depth + 1)
    assert max(len(node.outputs[0].name or "") for node in model.graph) < 200


def test_a_function_that_the_model_never_had_is_refused() -> None:
    for name in ("Nope", "local::Nope", "local::Inner:two"):
        with pytest.raises(UsageError, match=f"function.*{name}"):
            run_pipeline(parse(MODEL), f"inline-functions{{only={name}}}")
    model = parse(MODEL)
    run_pipeline(model, "inline-functions{only=Outer},inline-functions{only=Outer}")
    assert ("local", "Outer", "") not in model.functions
