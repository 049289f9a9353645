"""Reductions of few long rows, which threads share: results do not depend on the number of threads."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from onnx import parser

from benchmarks.native_models import natives
from graphopt.errors import NoCompiler
from graphopt.fusion.backends.c.c_compiler import find_compiler
from graphopt.ort import session
from graphopt.ort.session_options import SessionChoice
from tests.fuzz.kernels.batches import cpu_levels

#: One output for each kernel; all but the first reduce rows of ``x`` or ``n``.
MODEL = """<ir_version: 9, opset_import: ["" : 20]>
g (float[B,N] x, int64[B,N] n, float16[B,N] h)
=> (float[B,N] softmax, float[B,1] squares, float[B,N] rms, float[B,1] most, int64[B,1] whole, float16[B,N] half,
    float[B,N] twice, float[B,1] least) {
  axis = Constant <value_ints = [1]> ()
  eighth = Constant <value = float {0.125}> ()
  scaled = Mul(x, eighth)
  softmax = Softmax <axis = -1>(scaled)
  y = Abs(x) q = Mul(y, x) squares = ReduceSum(q, axis)
  p = Mul(x, x) mean = ReduceMean(p, axis) root = Sqrt(mean) rms = Div(x, root)
  s = Sigmoid(x) t = Neg(s) most = ReduceMax(t, axis)
  m = Mul(n, n) o = Sub(m, n) whole = ReduceSum(o, axis)
  k = Neg(h) half = Softmax <axis = -1>(k)
  e = Exp(scaled) sum = ReduceSum(e, axis) d = Sub(e, sum) f = Abs(d) l = ReduceMax(f, axis) twice = Div(d, l)
  c = Clip(x, eighth) least = ReduceMin(c, axis)
}"""


def _softmax(x: np.ndarray) -> np.ndarray:
    e = np.exp(x - x.max(axis=1, keepdims=True))
    return e / e.sum(axis=1, keepdims=True)


def _reference(feeds: dict[str, np.ndarray]) -> list[np.ndarray]:
    x, n, half = feeds["x"].astype(np.float64), feeds["n"], feeds["h"].astype(np.float64)

    def reduced(function: np.ufunc, values: np.ndarray) -> np.ndarray:
        return function.reduce(values, axis=1, keepdims=True)

    e = np.exp(x * 0.125)
    d = e - reduced(np.add, e)
    return [
        _softmax(x * 0.125),
        reduced(np.add, np.abs(x) * x),
        x / np.sqrt(np.mean(x * x, axis=1, keepdims=True)),
        reduced(np.maximum, -1 / (1 + np.exp(-x))),
        reduced(np.add, n * n - n),
        _softmax(-half),
        d / reduced(np.maximum, np.abs(d)),
        reduced(np.minimum, np.maximum(x, 0.125)),
    ]


def _feeds(rows: int, length: int) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(length)
    x = rng.standard_normal((rows, length), dtype=np.float32)
    return {"x": x, "n": rng.integers(-9, 9, (rows, length)), "h": (2 * x).astype(np.float16)}


@pytest.fixture(name="built", scope="module")
def _built(tmp_path_factory: pytest.TempPathFactory) -> tuple[bytes, tuple[str, ...]]:
    try:
        find_compiler(None)
    except NoCompiler:
        pytest.skip("no C compiler")
    model: onnx.ModelProto = parser.parse_model(MODEL)
    (native,) = natives([model], "fuse-groups", tmp_path_factory.mktemp("rows"))
    assert len(native.groups) >= 6
    return native.model, native.choice.libraries


@pytest.mark.parametrize("level", cpu_levels())
def test_results_are_equal_for_all_numbers_of_threads(
    built: tuple[bytes, tuple[str, ...]], level: int
) -> None:
    model, libraries = built
    choice = SessionChoice(libraries=libraries, cpu_level=level)
    running = [session.create(model, threads=threads, choice=choice) for threads in (1, 2, 3)]
    for rows, length in ((1, 300_001), (3, 65_536), (1, 5), (1, 131_073)):
        feeds = _feeds(rows, length)
        found = [session.run(each, feeds) for each in running]
        for index, expected in enumerate(_reference(feeds)):
            first = found[0][index]
            assert first.shape == expected.shape
            error = np.abs(first.astype(np.float64) - expected).max() / max(np.abs(expected).max(), 1e-9)
            assert error <= (1e-3 if first.dtype == np.float16 else 2e-6), (index, length)
            assert all(np.array_equal(first, other[index]) for other in found), (index, length)


def test_nan_in_one_part(built: tuple[bytes, tuple[str, ...]]) -> None:
    model, libraries = built
    running = session.create(model, threads=2, choice=SessionChoice(libraries=libraries))
    feeds = _feeds(2, 200_000)
    feeds["x"][1, 150_000] = np.nan
    found = session.run(running, feeds)
    for index in (0, 1, 2, 6):
        assert np.isfinite(found[index][0]).all()
        assert np.isnan(found[index][1]).all()
