"""Groups become forward and backward functions; groups without a gradient are inlined, with the reason."""

from __future__ import annotations

import numpy as np
import pytest

import graphopt
from graphopt import ir
from graphopt.context.observer import Observer, Refusal
from graphopt.ops import graphopt_operators
from graphopt.ort import session
from graphopt.profile import ValueProfile
from graphopt.profile.annotations import annotate, annotate_gradients
from tests.model_testing import agree, ops, parse, run_pipeline

CREATE = "create-autodiff-subgraphs"
#: Two groups with a random operator between them.
TWO = """g (float[N,4] x, float[4,8] w, float[8,3] v) => (float[N,3] y, float[N,8] h) {
    a = MatMul(x, w)
    h = Tanh(a)
    r = RandomUniformLike(h)
    q = Mul(r, h)
    b = MatMul(q, v)
    y = Sigmoid(b)
}"""


def differentiated(model: ir.Model | str, options: str = "") -> ir.Model:
    """The model after the pass, checked to be valid and equivalent."""
    original = parse(model) if isinstance(model, str) else model
    changed = original.clone()
    run_pipeline(changed, f"{CREATE}{options},differentiate")
    ir.validate(changed)
    return changed


def backward_of(model: ir.Model) -> dict[str, ir.Function]:
    return {
        key[1]: function
        for key, function in model.functions.items()
        if key[0] == graphopt_operators.AUTODIFF_BACKWARD
    }


def backward_model(model: ir.Model, name: str, types: dict[str, str]) -> ir.Model:
    """A model that calls the backward function ``name``, with inputs of the given types."""
    function = backward_of(model)[name]
    inputs = [value.name or "" for value in function.inputs]
    outputs = [value.name or "" for value in function.outputs]
    declared = ", ".join(f"{types[item]} i{index}" for index, item in enumerate(inputs))
    returned = ", ".join(f"float[] o{index}" for index in range(len(outputs)))
    results = ", ".join(f"o{index}" for index in range(len(outputs)))
    operands = ", ".join(f"i{index}" for index in range(len(inputs)))
    text = f"g ({declared}) => ({returned}) {{ {results} = {function.domain}.{name}({operands}) }}"
    made = parse(text, domains=f', "{function.domain}" : 1')
    made.functions[function.identifier()] = ir.clone_function(function)
    for value in made.graph.outputs:
        value.shape = None
    return made


def test_a_group_has_a_forward_and_a_backward_function() -> None:
    model = differentiated(TWO)
    assert ops(model) == ["group_0", "RandomUniformLike", "group_1"]
    found = backward_of(model)
    assert [value.name for value in found["group_0"].outputs] == ["grad.x_1", "grad.w_1"]
    # the random factor requires no gradient
    assert [value.name for value in found["group_1"].outputs] == ["grad.h_2", "grad.v_1"]


def test_backward_functions_compute_gradients() -> None:
    model = differentiated(TWO)
    types = {"h_1": "float[2,8]", "cotangent.h_1": "float[2,8]", "x_1": "float[2,4]", "w_1": "float[4,8]"}
    runnable = session.create(ir.to_bytes(backward_model(model, "group_0", types)))
    random = np.random.default_rng(0)
    x, w, dh = (random.standard_normal(shape).astype(np.float32) for shape in ((2, 4), (4, 8), (2, 8)))
    h = np.tanh(x @ w)
    feeds = {"h_1": h, "cotangent.h_1": dh, "x_1": x, "w_1": w}
    order = [value.name for value in backward_of(model)["group_0"].inputs]
    dx, dw = session.run(runnable, {f"i{index}": feeds[name or ""] for index, name in enumerate(order)})
    da = dh * (1 - h * h)
    np.testing.assert_allclose(dx, da @ w.T, rtol=1e-5)
    np.testing.assert_allclose(dw, x.T @ da, rtol=1e-5)


@pytest.mark.parametrize("pipeline", ["gradients", "profiling-gradients", "plan-optimized-gradients"])
def test_pipelines_with_gradients_preserve_the_model(pipeline: str) -> None:
    text = """g (float[N,4] x, bool c) => (float[N,4] y) {
        a = Exp(x)
        z = If (c) <
            then_branch = t () => (float[N,4] p) { b = RandomUniformLike(a) d = Mul(b, a) e = Sub(d, d) f = Sin(e) p = Mul(f, f) },
            else_branch = e () => (float[N,4] q) { g = Relu(a) q = Neg(g) }
        >
        y = Mul(a, z)
    }"""
    model, report = graphopt.optimize(parse(text), pipeline=pipeline)
    assert report.verdict is not None and report.verdict.ok
    assert any(key[0] == graphopt_operators.AUTODIFF_GROUPS for key in model.functions)


def test_residuals_are_further_outputs_of_calls() -> None:
    text = "g (float[N,4] x) => (float[N,4] y) { a = Exp(x) b = Relu(a) y = Mul(a, b) }"
    model = differentiated(text)
    (call,) = model.graph
    (forward,) = [
        function for key, function in model.functions.items() if key[0] == graphopt_operators.AUTODIFF_GROUPS
    ]
    assert [value.name for value in forward.outputs] == ["y_1", "saved.a", "saved.b"]
    assert len(call.outputs) == 3 and agree(parse(text), model)


def test_a_function_that_is_called_twice() -> None:
    """Only the element type and the first size are equal in both calls."""
    text = """<ir_version: 8, opset_import: ["" : 17, "graphopt.autodiff" : 1]>
    g (float[N,4] x, float[N,8] z) => (float[N,4] y, float[N,8] w) {
        y = graphopt.autodiff.group_0(x)
        w = graphopt.autodiff.group_0(z)
    }
    <opset_import: ["" : 17], domain: "graphopt.autodiff"> group_0 (a) => (c) { b = Exp(a) d = Softmax(b) c = Mul(d, b) }
    """
    model = parse(text)
    run_pipeline(model, "differentiate")
    ir.validate(model)
    first, second = model.graph
    (forward, _) = model.functions.values()
    assert len(first.outputs) == len(second.outputs) == len(forward.outputs)
    assert ops(model) == ["group_0"] * 2 and agree(parse(text), model)
    assert [value.name for value in backward_of(model)["group_0"].outputs] == ["grad.a"]
    before = {key: len(function) for key, function in model.functions.items()}
    _, cx = run_pipeline(model, "differentiate")
    assert cx.actions == 0 and before == {key: len(function) for key, function in model.functions.items()}


class Reasons(Observer):
    def __init__(self) -> None:
        self.found: list[str] = []

    def refused(self, refusal: Refusal) -> None:
        self.found.append(refusal.reason)


#: The second of two groups has no gradient.
NO_GRADIENT = """g (float[N,4] x, int64[K] axes) => (float[N,4] y, float[A,B] z) {
    a = Exp(x)
    b = Sin(a)
    r = RandomUniformLike(b)
    c = Mul(x, r)
    d = Neg(c)
    z = ReduceMax<noop_with_empty_axes = 1>(d, axes)
    y = Cos(b)
}"""


def test_a_group_without_gradient_is_inlined_with_the_reason() -> None:
    model, reasons = parse(NO_GRADIENT, opset=18), Reasons()
    run_pipeline(model, f"{CREATE},differentiate", observers=(reasons,))
    ir.validate(model)
    assert [node.op_type for node in model.graph] == [
        "group_0",
        "RandomUniformLike",
        "Mul",
        "Neg",
        "ReduceMax",
    ]
    (reason,) = reasons.found
    assert "ReduceMax" in reason and "its axes may be empty" in reason
    assert list(backward_of(model)) == ["group_0"]


#: Two groups; the rank of u, which the second one depends on, is unknown.
UNKNOWN_RANK = """g (float[N,4] x, float[] u) => (float[A,B] y, float[N,4] z) {
    a = Sin(x)
    z = Exp(a)
    r = RandomUniformLike(z)
    b = Mul(r, u)
    c = Mul(x, b)
    y = Cos(c)
}"""


@pytest.mark.parametrize("steps", ["differentiate", "guard-groups", "differentiate,guard-groups"])
@pytest.mark.parametrize("known", [True, False])
def test_a_group_that_can_not_be_guarded_is_inlined_with_the_reason(known: bool, steps: str) -> None:
    model, reasons = parse(UNKNOWN_RANK), Reasons()
    model.graph.inputs[1].shape = None
    annotate_gradients(model, {"x": True, "u": False})
    shape = (2, 4) if known else None
    annotate(
        model, {name: ValueProfile("tensor(float)", dims) for name, dims in (("x", (2, 4)), ("u", shape))}
    )
    run_pipeline(model, f"{CREATE},{steps}", observers=(reasons,))
    ir.validate(model)
    groups = ["group_0", "RandomUniformLike", "Mul"]
    assert ops(model) == [*groups, *(["group_1"] if known else ["Mul", "Cos"])]
    assert ("no guard can check its input 'b', whose rank is unknown" in reasons.found) != known
    assert any(name == "group_1" for _, name, _ in model.functions) == known
    last = list(model.graph)[-1].outputs[0]
    assert graphopt_operators.requires_grad_annotation(last) is (True if known else None)


def test_partitions_report_groups_that_are_inlined() -> None:
    found = graphopt.partition(parse(NO_GRADIENT, opset=18))
    ((group, reason),) = found.obstacles().items()
    assert group == "group_1" and "its axes may be empty" in reason


def test_reports_have_the_reasons() -> None:
    report = graphopt.optimize(
        parse(NO_GRADIENT, opset=18), pipeline=f"{CREATE},differentiate", verify=False
    ).report
    assert any("its axes may be empty" in line for line in report.lines(verbose=1))


def test_a_gradient_that_needs_a_newer_opset() -> None:
    text = "g (float[N,4] x, int64[2] s) => (float[A,B] y) { a = Exp(x) y = Reshape(a, s) }"
    model, reasons = parse(text, opset=13), Reasons()
    run_pipeline(model, f"{CREATE},differentiate", observers=(reasons,))
    assert ops(model) == ["Exp", "Reshape"] and reasons.found == ["its gradient needs opset 14"]
    assert ops(differentiated(parse(text, opset=14))) == ["group_0"]
