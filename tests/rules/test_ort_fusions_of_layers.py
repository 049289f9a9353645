"""Presets preserve the fusions of onnxruntime between layers with rewritten weights.

Each model is a layer, something that onnxruntime fuses, and another layer. A preset must not leave onnxruntime
with more operators than the original has after onnxruntime's own optimizations.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from graphopt import ir
from tests.model_testing import parse, run_pipeline
from tests.rules.test_ort_fusions import runtime_operators

_NORM = """$m = ReduceMean<axes = [-1]>($s) $d = Sub($s, $m) $p = Pow($d, two) $v = ReduceMean<axes = [-1]>($p)
    $e = Add($v, eps) $r = Sqrt($e) $n = Div($d, $r) $g = Mul($n, gamma) $y = Add($g, beta)"""
_ERF = "$a = Div($x, root) $b = Erf($a) $c = Add($b, one)"
_TANH = """$q = Pow($x, three) $a = Mul($q, small) $b = Add($x, $a) $c = Mul($b, ratio) $t = Tanh($c)
    $e = Add($t, one)"""

#: From $x to $y, both [B, 4, 6, 8]; $ stands for the prefix of a part.
FORMS = {
    "relu": "$y = Relu($x)",
    "leaky relu": "$y = LeakyRelu<alpha = 0.1>($x)",
    "relu 6": "$y = Clip($x, zero, six)",
    "hard swish": "$a = Add($x, three) $b = Clip($a, zero, six) $c = Mul($x, $b) $y = Div($c, six)",
    "hard swish of parts": "$a = HardSigmoid<alpha = 0.16666667>($x) $y = Mul($a, $x)",
    "hard sigmoid": "$a = Add($x, three) $b = Clip($a, zero, six) $y = Div($b, six)",
    "silu": "$a = Sigmoid($x) $y = Mul($x, $a)",
    "quick gelu": "$a = Mul($x, quick) $b = Sigmoid($a) $y = Mul($x, $b)",
    "gelu": f"{_ERF} $d = Mul($x, $c) $y = Mul($d, half)",
    "gelu, halved first": f"{_ERF} $h = Mul($x, half) $y = Mul($h, $c)",
    "gelu, halved in between": f"{_ERF} $h = Mul($c, half) $y = Mul($x, $h)",
    "gelu by tanh": f"$h = Mul($x, half) {_TANH} $y = Mul($h, $e)",
    "gelu by tanh, halved last": f"{_TANH} $h = Mul($x, $e) $y = Mul($h, half)",
    "mish": "$a = Softplus($x) $b = Tanh($a) $y = Mul($x, $b)",
    "layer norm": f"$s = Identity($x) {_NORM}",
    "rms norm": """$p = Pow($x, two) $v = ReduceMean<axes = [-1]>($p) $e = Add($v, eps) $s = Sqrt($e)
        $n = Div($x, $s) $y = Mul($n, gamma)""",
    "skip": "$y = Add($x, x)",
    "skip, layer norm": f"$s = Add($x, x) {_NORM}",
    "scaled": "$y = Mul($x, half)",
}
LAYERS = {
    "nothing": "$y = Identity($x)",
    "conv": "$y = Conv<pads = [1, 1, 1, 1]>($x, kernel)",
    "conv with bias": "$y = Conv<pads = [1, 1, 1, 1]>($x, kernel, bias)",
    "conv, batch norm": """$p = Conv<pads = [1, 1, 1, 1]>($x, kernel)
        $y = BatchNormalization($p, bias, bias, bias, variance)""",
    "batch norm, conv": "$p = BatchNormalization($x, bias, bias, bias, variance) $y = Conv($p, point)",
    "matmul": "$y = MatMul($x, w)",
    "linear": "$p = MatMul($x, w) $y = Add(beta, $p)",
    "transposed": """$p = Transpose<perm = [0, 1, 3, 2]>($x) $q = MatMul(w, $p)
        $y = Transpose<perm = [0, 1, 3, 2]>($q)""",
    "gemm": "$p = Reshape($x, rows) $q = Gemm<transB = 1>($p, w, beta) $y = Reshape($q, back)",
}
_QUICK = [
    (before, form, after)
    for before in ("nothing", "conv, batch norm")
    for form in ("gelu", "layer norm", "quick gelu")
    for after in ("conv", "gemm", "linear")
]


def _constants() -> str:
    numbers = {
        "zero": 0,
        "half": 0.5,
        "one": 1,
        "two": 2,
        "three": 3,
        "six": 6,
        "eps": 1e-5,
        "root": 1.4142135,
    }
    numbers |= {"small": 0.044715, "ratio": 0.7978846, "quick": 1.702}
    found = [f"float {name} = {{{float(value)}}}" for name, value in numbers.items()]
    shapes = {"kernel": (4, 4, 3, 3), "point": (4, 4, 1, 1), "bias": (4,), "variance": (4,), "w": (8, 8)}
    shapes |= {"gamma": (8,), "beta": (8,)}
    for name, shape in shapes.items():
        count = 1
        for size in shape:
            count *= size
        values = ", ".join(f"{0.1 + (7 * k + len(name)) % 13 / 8}" for k in range(count))
        found.append(f"float{list(shape)} {name} = {{{values}}}")
    found += ["int64[2] rows = {-1, 8}", "int64[4] back = {-1, 4, 6, 8}"]
    return ", ".join(found)


def _model(*parts: str) -> ir.Model:
    """The parts one after the other, from x to y."""
    nodes, given = "", "x"
    for number, part in enumerate(parts):
        nodes += f" p{number}x = Identity({given}) " + part.replace("$", f"p{number}")
        given = f"p{number}y"
    body = f"{{ {nodes} y = Identity({given}) }}"
    return parse(f"g (float[B, 4, 6, 8] x) => (float[B, 4, 6, 8] y) <{_constants()}> {body}", opset=14)


def _check(before: str, form: str, after: str, folder: Path) -> None:
    original = runtime_operators(_model(LAYERS[before], FORMS[form], LAYERS[after]), folder)
    for preset in ("O1", "O2", "O3"):
        model = _model(LAYERS[before], FORMS[form], LAYERS[after])
        run_pipeline(model, preset)
        result = runtime_operators(model, folder)
        assert result.total() <= original.total(), (
            f"{preset}, {before} / {form} / {after}: more {dict(result - original)}, fewer {dict(original - result)}"
        )


@pytest.mark.parametrize(("before", "form", "after"), _QUICK)
def test_the_runtime_finds_its_fusions(before: str, form: str, after: str, tmp_path: Path) -> None:
    _check(before, form, after, tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("form", list(FORMS))
@pytest.mark.parametrize("before", list(LAYERS))
def test_the_runtime_finds_its_fusions_beside_all_layers(before: str, form: str, tmp_path: Path) -> None:
    faults = []
    for after in LAYERS:
        try:
            _check(before, form, after, tmp_path)
        except AssertionError as error:
            faults.append(str(error).partition("\n")[0])
    assert not faults, "\n".join(faults)
