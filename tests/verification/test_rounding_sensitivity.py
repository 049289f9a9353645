"""Differences that the original's own conditioning explains are allowed, and faults of the same size are not."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx.numpy_helper
import pytest

from graphopt.ort.model_runs import Runs
from graphopt.verification.output_comparison import Deviation, compare
from graphopt.verification.perturb_rounding import perturb_rounding
from graphopt.verification.tolerances import Tolerance
from graphopt.verification.verifier import Verifier
from tests.ort.build import parse_proto

WIDTH = 32
SCALE, ZERO = np.float32(0.02), np.uint8(112)


def _weights(seed: int) -> Any:
    return np.random.default_rng(seed).standard_normal((WIDTH, WIDTH)).astype(np.float32) / 4


def quantized(
    *, reordered: bool = False, tail: tuple[str, ...] = (), output: str = "float", **changes: Any
) -> bytes:
    """Two quantized layers with a Gelu between; ``changes`` replace weights, scales and zero points.

    Args:
        reordered: compute the same with other roundings.
        tail: operators behind the last DequantizeLinear.
        output: the output is ``float``, or the ``uint8`` of the last QuantizeLinear.
    """
    random = np.random.default_rng(3)
    arrays: dict[str, Any] = {
        "w": _weights(0),
        "b": random.standard_normal(WIDTH).astype(np.float32),
        "v": _weights(1),
        "c": random.standard_normal(WIDTH).astype(np.float32),
        "root": np.float32(np.sqrt(0.5)),
        "half": np.float32(0.5),
        "one": np.float32(1),
        "big": np.float32(64),
        "scale": SCALE,
        "zero": ZERO,
        "last_scale": SCALE,
        "last_zero": ZERO,
    } | changes
    gelu = ["u = Mul(t, root)", "e = Erf(u)", "f = Add(e, one)", "g = Mul(t, f)", "h = Mul(g, half)"]
    if reordered:
        gelu[-2:] = ["g = Mul(f, half)", "h = Mul(g, t)"]
    there, back = ("Sub", "Add") if reordered else ("Add", "Sub")
    steps = [
        *("m = MatMul(x, w)", "s = Add(m, b)", f"i = {there}(s, big)", f"t = {back}(i, big)", *gelu),
        "q = QuantizeLinear(h, scale, zero)",
        "d = DequantizeLinear(q, scale, zero)",
        "p = MatMul(d, v)",
        "a = Add(p, c)",
        "r = QuantizeLinear(a, last_scale, last_zero)",
    ]
    if output == "float":
        steps.append("z0 = DequantizeLinear(r, last_scale, last_zero)")
        steps += [f"z{i} = {op}(z{i - 1})" for i, op in enumerate(tail, 1)]
    last = "r" if output == "uint8" else f"z{len(tail)}"
    text = " ".join(steps).replace(f"{last} = ", "y = ")
    proto = parse_proto(f"g (float[N, {WIDTH}] x) => ({output}[N, {WIDTH}] y) {{ {text} }}")
    proto.graph.initializer.extend(
        onnx.numpy_helper.from_array(np.asarray(array), name) for name, array in arrays.items()
    )
    return proto.SerializeToString()


FEEDS = {"x": np.random.default_rng(7).standard_normal((512, WIDTH)).astype(np.float32)}


@pytest.fixture(scope="module")
def options() -> Any:
    from graphopt.inputs.feeds import InputOptions

    return InputOptions(arrays=FEEDS)


@pytest.mark.parametrize("output", ["float", "uint8"])
def test_quantization_steps_flipped_by_rounding_are_allowed(output: str, options: Any) -> None:
    original, candidate = quantized(output=output), quantized(output=output, reordered=True)
    one, other = (Runs(model).run("off", FEEDS)[0] for model in (original, candidate))
    assert 0 < np.count_nonzero(one != other) < 40, "the case shows something: steps differ"
    with Verifier(original, options=options) as verifier:
        verdict = verifier.verify(candidate)
        assert verdict.ok, verdict.summary()
        assert any(row.excused and row.level == "off" for row in verdict.rows)


def test_models_with_external_data_have_equal_verdicts(options: Any, tmp_path: Path) -> None:
    paths = []
    for reordered in (False, True):
        paths.append(tmp_path / f"{reordered}.onnx")
        proto = onnx.ModelProto.FromString(quantized(reordered=reordered))
        onnx.save(
            proto, paths[-1], save_as_external_data=True, size_threshold=0, location=f"{reordered}.data"
        )
    with Verifier(paths[0], options=options) as verifier:
        verdict = verifier.verify(paths[1])
        assert verdict.ok and any(row.excused for row in verdict.rows), verdict.summary()


FAULTS: dict[str, dict[str, Any]] = {
    "scale off by one step": {"last_scale": SCALE * np.float32(1 + 1 / 127)},
    "zero point off by one": {"last_zero": np.uint8(ZERO + 1)},
    "inner zero point off by one": {"zero": np.uint8(ZERO + 1)},
    "inner scale off by one step": {"scale": SCALE * np.float32(1 + 1 / 127)},
    "dropped bias": {"c": np.zeros(WIDTH, np.float32)},
    "bias off by a tenth of a step": {
        "b": np.random.default_rng(3).standard_normal(WIDTH).astype(np.float32) + SCALE / 10
    },
    "swapped weights": {"v": _weights(0), "w": _weights(1)},
    "wrong axis": {"v": _weights(1).T.copy()},
    "gelu by another half": {"half": np.float32(0.505)},
    "another root": {"root": np.float32(0.7)},
}


@pytest.mark.parametrize("output", ["float", "uint8"])
@pytest.mark.parametrize("tail", [(), ("Sigmoid", "Identity")], ids=["plain", "bounded"])
@pytest.mark.parametrize("fault", FAULTS)
def test_faults_behind_quantization_steps_are_found(
    fault: str, tail: tuple[str, ...], output: str, options: Any
) -> None:
    with Verifier(quantized(tail=tail, output=output), options=options) as verifier:
        assert not verifier.verify(quantized(tail=tail, output=output, **FAULTS[fault])).ok, fault


def test_the_total_of_all_differences_is_bounded() -> None:
    exact, tolerance = np.zeros(100, np.float32), Tolerance(0.0, 0.0)
    few, all_ = exact.copy(), exact + np.float32(0.5)
    few[:3] = 0.5
    for moved, ok in ((few, True), (all_, False)):
        assert (compare(exact, moved, tolerance, slack=[1.0], totals=[8.0]).reason is None) is ok
    steps = np.full(100, 7, np.uint8)
    assert compare(steps, steps + np.uint8(1), tolerance, slack=[100.0], totals=[99.0]).reason is not None
    assert compare(steps, steps + np.uint8(1), tolerance, slack=[100.0], totals=[100.0]).reason is None
    indices = steps.astype(np.int64)
    assert compare(indices, indices + 50, tolerance, slack=[100.0], totals=[0.0]).reason is None
    assert Deviation(1, 2).merged(Deviation(0, 3)) == Deviation(1, 3)


def test_intermediate_results_are_rounded_in_every_run_and_in_bodies() -> None:
    proto = parse_proto(
        "g (bool c, int64[4] i, float[4] w) => (float[4] y, int64[4] k) {"
        " f = Cast<to = 1>(i) p = Mul(f, w) k = Neg(i) y = If(c) <"
        "then_branch = t () => (float[4] u) { u = Sin(p) }, else_branch = e () => (float[4] v) { v = Exp(p) }> }"
    )
    plain = Runs(proto.SerializeToString())
    assert perturb_rounding(proto) == 4, "of Cast, Mul, Sin and Exp"
    feeds = {"c": np.array(True), "i": np.arange(4) + 1, "w": np.linspace(0.3, 0.7, 4, dtype=np.float32)}
    (exact, same), draws = plain.run("off", feeds), [Runs(proto.SerializeToString()) for _ in range(2)]
    first, second = [run.run("off", feeds)[0] for run in draws], draws[0].run("off", feeds)
    assert np.array_equal(first[0], first[1]) and not np.array_equal(first[0], second[0])
    assert np.array_equal(second[1], same)
    assert 0 < np.abs(first[0] - exact).max() < 3e-6
    assert not perturb_rounding(parse_proto("g (int64[4] i) => (int64[4] k) { k = Neg(i) }"))


def test_the_mean_of_a_constant_plane_is_rounded() -> None:
    """onnxruntime subtracts mean * scale / std from the bias, and adds x * scale / std."""
    head = "g (float[N, 2, H, W] x) => (float[N, 2, H, W] y)"
    factor = np.array([0.69146043, -0.09182278], np.float32)
    scale, bias = np.array([[0.7143098, 0.33860174], [0.38081586, 0.07215784]], np.float32)

    def normalized(scale: Any, bias: Any, factor: Any) -> bytes:
        proto = parse_proto(f"{head} {{ n = InstanceNormalization(x, scale, bias) y = Mul(n, factor) }}")
        arrays = {"scale": scale, "bias": bias, "factor": factor.reshape(2, 1, 1)}
        proto.graph.initializer.extend(onnx.numpy_helper.from_array(a, name) for name, a in arrays.items())
        return proto.SerializeToString()

    with Verifier(normalized(scale, bias, factor)) as verifier:
        one = np.ones(2, np.float32)
        verdict = verifier.verify(normalized(scale * factor, bias * factor, one))
        assert verdict.ok, verdict.summary()
        assert not verifier.verify(normalized(scale * factor, bias * factor * 1.001, one)).ok
