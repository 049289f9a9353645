"""Comparison of inner tensors: the first that departs, matches, chunks and memory."""

from __future__ import annotations

import math
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import numpy_helper

import graphopt
from benchmarks.generated_decoder import Shape, write
from graphopt.errors import UnsupportedModel, UsageError
from graphopt.inputs.feeds import InputOptions
from graphopt.verification.inner_tensors import compare_models, paired_streams
from graphopt.verification.inner_tensors.departures import TensorComparison
from graphopt.verification.inner_tensors.paired_streams import Waiting, paired
from graphopt.verification.inner_tensors.tensor_comparison import Tolerances
from tests.ort.build import parse_proto

RANDOM = np.random.default_rng(0)
#: A block of attention and an MLP, with a mask, indices and a quantized part.
TEXT = """
g (float[batch, seq, 8] x, int64[batch, seq] ids) => (float[batch, seq, 8] y, int64[batch, seq] best)
{
    found = Gather(table, ids)
    h = Add(x, found)
    mean = ReduceMean<axes = [-1]>(h)
    centered = Sub(h, mean)
    squares = Mul(centered, centered)
    variance = ReduceMean<axes = [-1]>(squares)
    shifted = Add(variance, eps)
    deviation = Sqrt(shifted)
    normal = Div(centered, deviation)
    q = MatMul(normal, wq)
    k = MatMul(normal, wk)
    kt = Transpose<perm = [0, 2, 1]>(k)
    scores = MatMul(q, kt)
    scaled = Mul(scores, scale)
    weights = Softmax<axis = -1>(scaled)
    mixed = MatMul(weights, normal)
    residual = Add(mixed, h)
    inner = MatMul(residual, w1)
    biased = Add(inner, b1)
    active = Relu(biased)
    outer = MatMul(active, w2)
    clipped = Clip(outer, low, high)
    z = Sigmoid(clipped)
    y = Add(z, residual)
    best = ArgMax<axis = -1, keepdims = 0>(y)
}
"""


#: Its values, in order.
NAMES = [line.split()[0] for line in TEXT.splitlines() if " = " in line]


def weights() -> dict[str, Any]:
    """The initializers of the model."""
    normal = np.random.default_rng(3).standard_normal
    shapes = {"table": (5, 8), "wq": (8, 8), "wk": (8, 8), "w1": (8, 16), "b1": (16,), "w2": (16, 8)}
    found: dict[str, Any] = {name: normal(shape).astype(np.float32) for name, shape in shapes.items()}
    scalars = {"eps": 1e-5, "scale": 0.35, "low": -3.0, "high": 3.0}
    return found | {name: np.float32(number) for name, number in scalars.items()}


def build(text: str = TEXT, change: Callable[[dict[str, Any]], None] | None = None) -> onnx.ModelProto:
    model, found = parse_proto(text), weights()
    if change is not None:
        change(found)
    model.graph.initializer.extend(
        numpy_helper.from_array(np.asarray(array), name) for name, array in found.items()
    )
    return model


def options(**more: Any) -> InputOptions:
    return InputOptions(shapes={"x": (2, 3, 8), "ids": (2, 3)}, **more)


def replaced(before: str, after: str) -> onnx.ModelProto:
    assert before in TEXT
    return build(TEXT.replace(before, after))


def weight(name: str, change: Callable[[Any], Any]) -> onnx.ModelProto:
    return build(change=lambda found: found.update({name: change(found[name])}))


#: Models with one fault, by the tensor that it changes first.
FAULTS: dict[str, Callable[[], onnx.ModelProto]] = {
    "found": lambda: weight("table", lambda array: np.roll(array, 1, 0)),
    "mean": lambda: replaced("mean = ReduceMean", "mean = ReduceMax"),
    "squares": lambda: replaced("Mul(centered, centered)", "Mul(centered, h)"),
    "shifted": lambda: weight("eps", lambda eps: eps * 1000),
    "normal": lambda: replaced("Div(centered, deviation)", "Div(h, deviation)"),
    "q": lambda: weight("wq", lambda array: array.T.copy()),
    "k": lambda: weight("wk", lambda array: array * np.float32(1.001)),
    "scaled": lambda: weight("scale", lambda scale: scale * np.float32(2)),
    "weights": lambda: replaced("Softmax<axis = -1>", "Softmax<axis = 1>"),
    "biased": lambda: weight("b1", lambda array: array[::-1].copy()),
    "clipped": lambda: weight("high", lambda high: high / 2),
    "z": lambda: replaced("z = Sigmoid(clipped)", "z = HardSigmoid(clipped)"),
    "best": lambda: replaced("ArgMax<axis = -1, keepdims = 0>", "ArgMin<axis = -1, keepdims = 0>"),
}  # fmt: skip


@pytest.fixture(params=["whole", "in chunks"])
def chunked(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> bool:
    """Whether the models run in chunks of few bytes."""
    is_chunked = request.param == "in chunks"
    if is_chunked:
        monkeypatch.setattr(compare_models, "WEIGHT_BYTES", 600)
        monkeypatch.setattr(compare_models, "TENSOR_BYTES", 1000)
    return is_chunked


def compared(b: Any, **more: Any) -> TensorComparison:
    return graphopt.compare(build(), b, inputs=options(), device="cpu", **more)


@pytest.mark.parametrize("planted", FAULTS)
def test_the_first_departure_is_the_planted_fault(planted: str, chunked: bool) -> None:
    found = compared(FAULTS[planted]())
    assert found.first is not None and found.first.name == planted
    assert [one.name for one in found.sources] == [planted]
    assert max(found.chunks) > 4 or not chunked


@pytest.mark.parametrize("planted", ["k", "biased", "clipped"])
@pytest.mark.parametrize("pipeline", ["O2", "O3"])
def test_faults_of_optimized_models(planted: str, pipeline: str) -> None:
    result = graphopt.optimize(FAULTS[planted](), pipeline=pipeline, device="cpu", verify=False).model
    found = compared(result)
    first = found.first
    assert first is not None and not found.is_equal
    # fusions remove values: the first departure is the first value after the fault that still exists
    exists = {value.name for node in result.graph for value in node.outputs}
    assert first.name == next(name for name in NAMES[NAMES.index(planted) :] if name in exists)


def test_equal_models_have_no_departure(chunked: bool) -> None:
    found = compared(build())
    assert found.is_equal and found.first is None and not found.sources
    assert found.unmatched == (0, 0) and all(one.error.is_identical for one in found.tensors)
    assert [one.name for one in found.tensors] == NAMES


@pytest.mark.parametrize("pipeline", ["O1", "O2", "O3"])
def test_results_agree_with_their_original(pipeline: str) -> None:
    found = compared(graphopt.optimize(build(), pipeline=pipeline, device="cpu", verify=False).model)
    assert found.is_equal and found.tensors, found.first


def test_two_levels_of_optimization() -> None:
    found = compared(None, other_optimizations="default")
    names = {one.name for one in found.tensors}
    assert found.is_equal and found.lost > 0 and {"y", "best"} <= names
    assert "scores" not in names, "onnxruntime fuses the product with its factor"


def in_half(model: onnx.ModelProto) -> onnx.ModelProto:
    """``model`` in half precision, with the same names."""
    made = onnx.ModelProto()
    made.CopyFrom(model)
    half = onnx.TensorProto.FLOAT16
    for value in (*made.graph.input, *made.graph.output):
        if value.type.tensor_type.elem_type == onnx.TensorProto.FLOAT:
            value.type.tensor_type.elem_type = half
    for tensor in made.graph.initializer:
        tensor.CopyFrom(
            numpy_helper.from_array(numpy_helper.to_array(tensor).astype(np.float16), tensor.name)
        )
    return made


def test_two_precisions() -> None:
    found = compared(in_half(build()), rtol=0.02, atol=0.02)
    floats = [one for one in found.tensors if one.kind.startswith("f32")]
    assert floats and not any(one.error.is_identical for one in floats if one.name in ("q", "y"))
    assert all(one.error.reason is None for one in floats)
    half = [one.error.relative for one in floats]
    assert 1e-5 < max(half) < 0.02


def test_a_fault_of_a_model_in_half_precision() -> None:
    found = compared(in_half(FAULTS["scaled"]()), rtol=0.02, atol=0.02)
    assert found.first is not None and found.first.name == "scaled"


def test_tolerances() -> None:
    near = weight("wq", lambda array: array * np.float32(1 + 1e-5))
    assert compared(near).is_equal
    strict = compared(near, rtol=1e-7, atol=0.0)
    assert strict.first is not None and strict.first.name == "q"
    bits = compared(near, bits=True)
    assert bits.first is not None and (bits.first.name, bits.first.error.reason) == ("q", "not the same bits")


def test_histogram_of_errors_along_the_depth() -> None:
    found = compared(FAULTS["biased"]())
    depths = found.histogram()
    assert [one.first for one in depths] == sorted(one.first for one in depths) and len(depths) <= 10
    assert sum(one.identical + sum(one.bins) for one in depths) == len(found.tensors)
    assert sum(one.departed for one in depths) == len(found.departed)
    biased = next(one for one in found.tensors if one.name == "biased")
    assert all(one.largest == 0.0 for one in depths if one.last < biased.depth)
    assert next(one.largest for one in depths if one.first <= biased.depth <= one.last) > 0.0


def test_the_first_nan_and_infinity() -> None:
    model = replaced("deviation = Sqrt(shifted)", "deviation = Log(centered)")
    found = compared(model)
    assert found.nonfinite["a"] == {}
    nan = found.nonfinite["b"]["nan"]
    assert (nan.value, nan.count) == ("deviation", nan.count) and nan.count > 0
    zero = replaced("deviation = Sqrt(shifted)", "w = Sub(h, h) deviation = Mul(w, shifted)")
    assert {"nan", "inf"} & set(compared(zero).nonfinite["b"])


def test_values_that_lost_their_names_are_matched_by_origin() -> None:
    model = replaced("scaled = Mul(scores, scale)\n    weights = Softmax<axis = -1>(scaled)", "other = Mul(scores, scale)\n    weights = Softmax<axis = -1>(other)")  # fmt: skip
    base = build()
    for one in (base, model):
        for index, node in enumerate(one.graph.node):
            node.name = f"node{index}"
    found = graphopt.compare(base, model, inputs=options(), device="cpu")
    assert found.is_equal and found.unmatched == (0, 0)
    scaled = next(one for one in found.tensors if one.name == "scaled")
    assert scaled.pair.b.name == "other" and not scaled.pair.is_sure
    numpy_array = numpy_helper.from_array(np.array(0.7, np.float32), "scale")
    next(one for one in model.graph.initializer if one.name == "scale").CopyFrom(numpy_array)
    found = graphopt.compare(base, model, inputs=options(), device="cpu")
    assert found.first is not None and found.first.name == "scaled", "confirmed by a departure of its reader"


def test_a_departure_without_consequence_does_not_count_for_a_match_by_origin() -> None:
    """Both nodes replace the sum; the first one of them computes another part of it."""
    text = "g (float[4] x, float[4] z) => (float[4] y) { a = Add(x, z) b = Add(a, x) y = Abs(b) }"
    other = "g (float[4] x, float[4] z) => (float[4] y) { c = Add(x, x) b = Add(c, z) y = Abs(b) }"
    base, model = parse_proto(text), parse_proto(other)
    base.graph.node[0].name = model.graph.node[0].name = "sum"
    found = graphopt.compare(base, model, device="cpu")
    wrong = [one.name for one in found.tensors if one.error.reason is not None]
    assert wrong == ["a"] and found.is_equal


def test_random_values_are_not_compared() -> None:
    model = parse_proto(
        "g (float[4] x) => (float[4] y, float[4] z) { r = RandomNormalLike(x) y = Add(x, r) z = Neg(x) }"
    )
    found = graphopt.compare(model, model, device="cpu")
    assert found.is_equal and found.random == 2 and [one.name for one in found.tensors] == ["z"]


def test_models_that_do_not_fit_each_other_are_refused() -> None:
    renamed = parse_proto("g (float[4] v) => (float[4] w) { w = Neg(v) }")
    with pytest.raises(UnsupportedModel, match="no tensor of model A has the name or the origin"):
        graphopt.compare(parse_proto("g (float[4] x) => (float[4] y) { y = Abs(x) }"), renamed, device="cpu")
    with pytest.raises(UsageError, match="model B has no input 'x'"):
        graphopt.compare(
            parse_proto("g (float[4] x) => (float[4] y) { y = Abs(x) }"),
            parse_proto("g (float[4] v) => (float[4] y) { y = Abs(v) }"),
            device="cpu",
        )


def test_bodies_and_sequences_across_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    """A value that a body reads, and an input that a late chunk reads, are kept until then."""
    model = parse_proto(
        """g (float[4] x, bool c) => (float[4] y)
        {
            a = Neg(x)
            b = Abs(x)
            d = If (c) <
                then_branch = t () => (float[4] r) { r = Add(a, b) },
                else_branch = e () => (float[4] r) { r = Mul(a, x) }
            >
            e = Exp(d)
            y = Sub(e, x)
        }"""
    )
    monkeypatch.setattr(compare_models, "TENSOR_BYTES", 1)
    found = graphopt.compare(model, model, device="cpu")
    assert found.is_equal and found.chunks == (5, 5) and len(found.tensors) == 5


def test_values_wait_for_their_partners_in_files(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(paired_streams, "_KEPT", 100)
    arrays = {name: np.full(8, index, np.float32) for index, name in enumerate("abcdef")}
    with Waiting() as waiting:
        for name, array in arrays.items():
            waiting.put(name, array)
        for name in reversed(arrays):
            assert name in waiting
            np.testing.assert_array_equal(waiting.pop(name), arrays[name])
            assert name not in waiting
    backwards = [{name: arrays[name]} for name in reversed(arrays)]
    forwards = [{name: arrays[name]} for name in arrays]
    found = list(paired(iter(forwards), iter(backwards), {name: name for name in arrays}))
    assert sorted(name for name, _, _ in found) == sorted(arrays)
    assert all(np.array_equal(value, twin) for _, value, twin in found)


@pytest.mark.slow
def test_memory_of_a_large_model(tmp_path: Path) -> None:
    """Neither this process nor one with a session contains the model."""
    shape = Shape(layers=8, hidden=1024, inner=4096, heads=8, cached_heads=2, words=1000)
    path = write(shape, tmp_path / "model.onnx", element=np.float32)
    code = (
        "import resource, sys, graphopt\n"
        "from graphopt.verification.inner_tensors import compare_models\n"
        "compare_models.WEIGHT_BYTES = 1 << 25\n"
        "found = graphopt.compare(sys.argv[1], sys.argv[1], device='cpu')\n"
        "assert found.is_equal and found.tensors and min(found.chunks) > 8\n"
        "print(found.peak_bytes, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024)\n"
    )
    done = subprocess.run([sys.executable, "-c", code, path], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    weights = path.with_name("model.onnx.data").stat().st_size
    assert max(map(int, done.stdout.split())) < 0.75 * weights


@pytest.mark.parametrize("given", [{"rtol": math.nan}, {"atol": math.nan}, {"rtol": -1.0}, {"atol": -1e-9}])
def test_tolerances_are_not_negative_numbers(given: dict[str, float]) -> None:
    with pytest.raises(UsageError, match="tol is "):
        Tolerances(**given)
