"""Attention of products and a softmax becomes the kernel of attention, with onnxruntime's results."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest

from benchmarks.native_models import Native, natives
from graphopt.errors import NoCompiler, RuntimeFailure
from graphopt.fusion.backends.c.c_compiler import find_compiler
from graphopt.ort import session
from graphopt.ort.session_options import SessionChoice
from tests.fuzz.kernels.batches import cpu_levels

_MODEL = """<ir_version: 8, opset_import: ["": 18]>
g (float[B,3,S,D] q, float[B,3,T,D] k, float[B,3,U,20] v, float[B,1,S,T] m, float[1,T] few)
=> (float[B,3,S,20] plain, float[B,S,3,20] guarded, float[B,3,S,20] broadcast)
<float s = {0.4}, float zero = {0.0}, float d = {2.0}, int64[1] n = {1}> {
    k1 = Transpose <perm = [0, 1, 3, 2]> (k)
    p1 = MatMul(q, k1)
    d1 = Div(p1, d)
    w1 = Softmax <axis = -1> (d1)
    plain = MatMul(w1, v)
    q2 = Mul(q, s)
    k2 = Transpose <perm = [0, 1, 3, 2]> (k)
    t2 = Mul(s, k2)
    p2 = MatMul(q2, t2)
    a2 = Add(p2, m)
    w2 = Softmax <axis = -1> (a2)
    n2 = IsNaN(w2)
    g2 = Where(n2, zero, w2)
    r2 = MatMul(g2, v)
    guarded = Transpose <perm = [0, 2, 1, 3]> (r2)
    k3 = Transpose <perm = [0, 1, 3, 2]> (k)
    p3 = MatMul(q, k3)
    a3 = Add(few, p3)
    w3 = Softmax <axis = 3> (a3)
    broadcast = MatMul(w3, v)
}""".replace(",D]", ",16]")


def _model() -> onnx.ModelProto:
    return onnx.parser.parse_model(_MODEL)


def _feeds(lengths: tuple[int, int, int], seed: int = 0) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(seed)
    batch, queries, keys = lengths
    shapes = {
        "q": (batch, 3, queries, 16),
        "k": (batch, 3, keys, 16),
        "v": (batch, 3, keys, 20),
        "m": (batch, 1, queries, keys),
        "few": (1, keys),
    }
    return {name: rng.standard_normal(shape, dtype=np.float32) for name, shape in shapes.items()}


@pytest.fixture(name="native", scope="module")
def _native(tmp_path_factory: pytest.TempPathFactory) -> Native:
    try:
        find_compiler(None)
    except NoCompiler:
        pytest.skip("no C compiler")
    (native,) = natives([_model()], "fuse-groups", tmp_path_factory.mktemp("attention"))
    assert len(native.groups) == 3
    left = {node.op_type for node in onnx.ModelProto.FromString(native.model).graph.node}
    assert not left & {"MatMul", "Softmax", "Transpose", "Where"}
    return native


@pytest.mark.parametrize("level", cpu_levels())
@pytest.mark.parametrize("threads", [1, 2])
def test_results(native: Native, level: int, threads: int) -> None:
    choice = SessionChoice(libraries=native.choice.libraries, cpu_level=level)
    running = session.create(native.model, threads=threads, choice=choice)
    original = session.create(_model().SerializeToString(), threads=1)
    for lengths in ((2, 1, 300), (1, 40, 70), (2, 7, 1), (0, 3, 4), (2, 0, 4)):
        feeds = _feeds(lengths)
        for one, two in zip(session.run(running, feeds), session.run(original, feeds), strict=True):
            np.testing.assert_allclose(one, two, rtol=0, atol=3e-6)


def test_special_values_are_those_of_onnxruntime(native: Native) -> None:
    running = session.create(native.model, threads=1, choice=native.choice)
    original = session.create(_model().SerializeToString(), threads=1)
    for name in ("q", "k", "v", "m"):
        for value in (np.nan, np.inf, -np.inf):
            feeds = _feeds((2, 5, 9))
            feeds[name][1, 0, 3 % feeds[name].shape[2], 2] = value
            feeds["m"][0, 0, 1] = -np.inf  # hides all keys
            for one, two in zip(session.run(running, feeds), session.run(original, feeds), strict=True):
                np.testing.assert_allclose(one, two, rtol=0, atol=3e-6, err_msg=f"{name} {value}")


def test_values_of_another_length_fail_with_a_message(native: Native) -> None:
    feeds = _feeds((1, 2, 5))
    feeds["v"] = feeds["v"][:, :, :4]
    with pytest.raises(RuntimeFailure, match="value is 4 long on axis 2, 5 expected"):
        session.run(session.create(native.model, threads=1, choice=native.choice), feeds)


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("float[B,3,T,16] k", "float[A,3,T,16] k"),  # batches may broadcast
        ("float[B,1,S,T] m", "float[B,1,S,M] m"),  # the mask may broadcast
        ("Softmax <axis = -1> (a2)", "Softmax <axis = 2> (a2)"),
        ("float zero = {0.0}", "float zero = {1.0}"),
        (
            "float[B,S,3,20] guarded",
            "float[B,S,3,20] guarded, float[B,3,S,T] a2",
        ),  # scores have another reader
    ],
)
def test_other_patterns_remain(before: str, after: str, tmp_path: Path) -> None:
    assert before in _MODEL
    (native,) = natives([onnx.parser.parse_model(_MODEL.replace(before, after))], "fuse-groups", tmp_path)
    left = [node.op_type for node in onnx.ModelProto.FromString(native.model).graph.node]
    assert left.count("MatMul") >= 1
