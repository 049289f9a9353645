"""Outputs share memory with dead inputs only."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx.parser
import onnxruntime
import pytest

from graphopt import ir
from graphopt.fusion.backends.c import BACKEND
from graphopt.fusion.group_functions import kernels_of
from graphopt.ort import session
from graphopt.ort.session_options import SessionChoice
from graphopt.util.disk_store import Store
from tests.fusion.backends.c.runtime import samples
from tests.fusion.models import grouped
from tests.model_testing import parse

pytestmark = samples.compiled

#: Declared shapes let onnxruntime share memory. ``after`` reads ``b`` after the kernel.
SHARING = """
<ir_version: 8, opset_import: ["": 17, "graphopt.native": 1]>
g (float[N] x) => (float[N] last, float[N] kept, float[N] after, float[N] given) <float[N] s, float[N] t, float[N] u> {
  a = Neg(x)
  s = graphopt.native.affine_0123456789ab(a)
  last = Neg(s)
  b = Abs(x)
  t = graphopt.native.affine_0123456789ab(b)
  kept = Neg(t)
  after = Add(b, t)
  u = graphopt.native.affine_0123456789ab(x)
  given = Neg(u)
}
<opset_import: ["": 17], domain: "graphopt.native">
affine_0123456789ab (x) => (y) { y = Exp(x) }
"""


def test_memory_is_shared_with_dead_inputs(tmp_path: Path) -> None:
    library = samples.library(tmp_path, {samples.NAME: "work->x == work->y ? 1.0f : 2.0f"})
    choice = SessionChoice(libraries=(library,))
    running = session.create(
        onnx.parser.parse_model(SHARING).SerializeToString(), optimizations="off", choice=choice
    )
    x = np.linspace(-2, 2, 1000, dtype=np.float32)
    last, kept, after, given = session.run(running, {"x": x.copy()})
    shares = tuple(map(int, onnxruntime.__version__.split(".")[:2])) >= (1, 18)
    assert set(last) == {-1.0 if shares else -2.0}
    assert set(kept) == {-2.0} and set(given) == {-2.0}
    np.testing.assert_array_equal(after, np.abs(x) + 2)


#: Groups with in-place kernels, whose inputs are read before, later, or returned.
READ = {
    "nothing else": "y = MatMul(b, w)",
    "a later node": "q = MatMul(b, w) r = MatMul(p, w) y = Add(q, r)",
    "a later group": "q = MatMul(b, w) c = Cos(p) d = Abs(c) r = MatMul(d, w) y = Add(q, r)",
    "two groups in place": "q = MatMul(b, w) c = Cos(q) d = Mul(c, q) y = MatMul(d, w)",
    "a node before": "r = MatMul(p, w) q = MatMul(b, r) y = MatMul(q, w)",
    "a view": "v = Reshape(p, flat) q = MatMul(b, w) r = Abs(q) y0 = Reshape(v, back) y = MatMul(y0, r)",
}


@pytest.mark.parametrize("name", READ)
def test_live_inputs_are_not_overwritten(name: str, made: dict[str, tuple[ir.Model, str]]) -> None:
    model, library = made[name]
    x = np.random.default_rng(0).normal(0, 1, (96, 96)).astype(np.float32)
    feeds = {"x": x, "w": np.roll(x, 1, axis=0) / 96}
    exact = session.create(ir.to_proto(parse(_text(name))).SerializeToString(), optimizations="off")
    expected = session.run(exact, feeds)
    data = ir.to_proto(model).SerializeToString()
    for threads in (1, 2):
        for optimizations in ("off", "default"):
            choice = SessionChoice(libraries=(library,))
            running = session.create(data, optimizations=optimizations, threads=threads, choice=choice)
            for _ in range(2):
                for one, two in zip(session.run(running, feeds), expected, strict=True):
                    np.testing.assert_allclose(one, two, rtol=1e-4, atol=1e-5)


def _text(name: str) -> str:
    return (
        "g (float[96,96] x, float[96,96] w) => (float[96,96] y, float[96,96] z)"
        " <int64[1] flat = {-1}, int64[2] back = {96, 96}> {"
        f" p = MatMul(x, w) a = Sin(p) b = Mul(a, p) {READ[name]} z = MatMul(b, x) }}"
    )


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[ir.Model, str]]:
    """The models with their groups, and a library for all of them."""
    models = {name: grouped(_text(name)) for name in READ}
    kernels = {kernel.name: kernel for model in models.values() for kernel in kernels_of(model)}
    assert all(kernel.in_place for kernel in kernels.values())
    library = str(BACKEND.build(list(kernels.values()), Store(tmp_path_factory.mktemp("store"))))
    return {name: (model, library) for name, model in models.items()}
