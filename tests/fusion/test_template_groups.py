"""Groups with a template: their nodes, their epilogues, and constants that are packed once per session."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest

import graphopt
from graphopt import config, ir
from graphopt.context import context_for
from graphopt.fusion.group_functions import groups_of, kernels_of
from graphopt.fusion.kernel_library import common_library, libraries_for
from graphopt.fusion.template_kernel import TemplateKernel
from graphopt.ops.graphopt_operators import NATIVE_DOMAIN
from graphopt.ort.devices import CPU
from graphopt.passes.pipelines import make_pipeline
from tests.fusion.naive_template import install
from tests.model_testing import parse

pytestmark = pytest.mark.usefixtures("naive_template")


@pytest.fixture(name="naive_template")
def _naive_template(monkeypatch: pytest.MonkeyPatch) -> None:
    install(monkeypatch)


def grouped(text: str, pipeline: str = "fuse-groups") -> ir.Model:
    model = parse(text)
    with context_for(model) as cx:
        make_pipeline(pipeline).run(model, cx)
    return model


def groups(text: str) -> list[list[str]]:
    """The operators of each group."""
    model = grouped(text)
    found = [function for key, function in model.functions.items() if key[0] == NATIVE_DOMAIN]
    return [[node.op_type for node in function if node.op_type != "Constant"] for function in found]


HEAD = "g (float[N,8] x, float[8,C] w, float[C] b, float[N,C] r) => "


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        ("(float[N,C] y) { y = MatMul(x, w) }", [["MatMul"]]),
        ("(float[N,C] y) { p = MatMul(x, w) y = Add(p, b) }", [["MatMul", "Add"]]),
        (
            "(float[N,C] y) { p = MatMul(x, w) s = Sigmoid(p) q = Mul(p, s) y = Add(q, r) }",
            [["MatMul", "Sigmoid", "Mul", "Add"]],
        ),
        # The result of the product is returned, too.
        ("(float[N,C] y, float[N,C] p) { p = MatMul(x, w) y = Abs(p) }", [["MatMul"]]),
        # A reader is not elementwise.
        ("(float[N,C] y, float[N,1] z) { p = MatMul(x, w) y = Abs(p) z = ReduceMax(p) }", [["MatMul"]]),
        ("(float[N,C] y) { p = MatMul(x, w) q = Abs(p) y = Softmax(q) }", [["MatMul", "Abs"]]),
        # Two products, each with an epilogue; the first epilogue reads the result of the second group.
        (
            "(float[N,C] y) { p = MatMul(x, w) q = Abs(p) m = MatMul(x, w) n = Neg(m) y = Mul(q, n) }",
            [["MatMul", "Neg"], ["MatMul", "Abs", "Mul"]],
        ),
        # The result is broadcast: it is not read element by element.
        (
            "(float[N,C] y) { o = Sum(x) p = MatMul(x, w) q = Tanh(p) y = Add(q, r) }",
            [["MatMul", "Tanh", "Add"]],
        ),
        # Moves at the end cost nothing elsewhere.
        (
            "(float[1,N,C] y) { p = MatMul(x, w) q = Tanh(p) a = Constant <value = int64[1] {0}> () "
            "y = Unsqueeze(q, a) }",
            [["MatMul", "Tanh"]],
        ),
    ],
)
def test_groups_contain_a_product_and_its_epilogue(body: str, expected: list[list[str]]) -> None:
    assert groups(HEAD + body) == expected


def test_templates_are_optional() -> None:
    model = grouped(HEAD + "(float[N,C] y) { p = MatMul(x, w) y = Add(p, b) }", "fuse-groups{kernels=loops}")
    assert not model.functions


EPILOGUES = {
    "none": "y = Identity(p)",
    "bias": "y = Add(p, b)",
    "column": "y = Mul(p, c)",
    "scalar": "k = Constant <value = float {0.37}> () y = Mul(p, k)",
    "silu": "s = Sigmoid(p) y = Mul(p, s)",
    "residual": "q = Add(p, b) t = Tanh(q) y = Add(t, r)",
    "transposed": "q = Tanh(p) y = Transpose(q)",
    "below": "q = Sub(r, p) a = Abs(q) y = Sqrt(a)",
}


@pytest.fixture(name="libraries", scope="module")
def _libraries() -> Iterator[dict[str, tuple[ir.Model, tuple[str, ...]]]]:
    """Each model with its groups, and the one library of all."""
    with pytest.MonkeyPatch.context() as monkeypatch:
        install(monkeypatch)
        models = {}
        for name, body in EPILOGUES.items():
            shape = "C,N" if name == "transposed" else "N,C"
            inputs = "g (float[N,K] x, float[K,C] w, float[C] b, float[N,1] c, float[N,C] r)"
            models[name] = grouped(f"{inputs} => (float[{shape}] y) {{ p = MatMul(x, w) {body} }}")
        together = common_library(list(models.values()), config.current(), CPU)
        assert together is not None and together.path is not None, together
        yield {name: (model, (str(together.path),)) for name, model in models.items()}


@pytest.mark.parametrize("sizes", [(5, 8, 48), (1, 1, 1), (7, 3, 17), (0, 4, 5), (4, 0, 5), (33, 16, 31)])
@pytest.mark.parametrize("name", EPILOGUES)
def test_epilogues_equal_separate_nodes(
    libraries: dict[str, tuple[ir.Model, tuple[str, ...]]], name: str, sizes: tuple[int, int, int]
) -> None:
    model, library = libraries[name]
    rows, depth, columns = sizes
    generator = np.random.default_rng(sum(sizes))
    shapes = {
        "x": (rows, depth),
        "w": (depth, columns),
        "b": (columns,),
        "c": (rows, 1),
        "r": (rows, columns),
    }
    feeds = {key: generator.standard_normal(shape).astype(np.float32) for key, shape in shapes.items()}
    read = {value.name for value in model.graph.inputs}
    feeds = {key: value for key, value in feeds.items() if key in read}
    for special in (0.0, np.nan, np.inf):
        if rows and depth:
            feeds["x"][0, 0] = special
        expected = graphopt.run(model, feeds, libraries=())["y"]
        found = graphopt.run(model, feeds, libraries=library)["y"]
        np.testing.assert_allclose(found, expected, rtol=2e-5, atol=2e-5)


def test_the_epilogue_of_one_element_is_stored() -> None:
    model = grouped(
        "g (float[1,3] x, float[3,1] w, float[1] b) => (float[1,1] y, float[1,1] z)"
        " { p = MatMul(x, w) z = Add(p, b) y = Sigmoid(z) }"
    )
    feeds = {"x": np.array([[1, 2, 3]], np.float32), "w": np.array([[3], [-1], [2]], np.float32)}
    found = graphopt.run(model, {**feeds, "b": np.array([-6], np.float32)})
    np.testing.assert_allclose(found["z"], [[1]])
    np.testing.assert_allclose(found["y"], [[1 / (1 + np.exp(-1))]], rtol=1e-6)


def _session(model: ir.Model, library: tuple[str, ...]) -> onnxruntime.InferenceSession:
    options = onnxruntime.SessionOptions()
    for path in library:
        options.register_custom_ops_library(path)
    return onnxruntime.InferenceSession(ir.to_bytes(model), options)


def test_sessions_share_packed_constants_and_outlive_each_other() -> None:
    texts = [
        f"g (float[N,2] x) => (float[N,2] y) <float[2,2] w = {{{weights}}}> {{ y = MatMul(x, w) }}"
        for weights in ("1, 2, 3, 4", "5, 6, 7, 8")
    ]
    models = [grouped(text) for text in texts]
    assert [kernel.name for kernel in kernels_of(models[0])] == [
        kernel.name for kernel in kernels_of(models[1])
    ]
    library = libraries_for(models[0], config.current()).paths
    feeds = {"x": np.array([[1, 0], [0, 1]], np.float32)}
    expected = [np.array([[1, 2], [3, 4]], np.float32), np.array([[5, 6], [7, 8]], np.float32)]
    sessions = [_session(model, library) for model in (*models, *models)]
    while sessions:
        for index, session in enumerate(sessions):
            np.testing.assert_array_equal(
                session.run(None, feeds)[0], expected[(4 - len(sessions) + index) % 2]
            )
        del sessions[0]


def test_a_saved_model_has_the_same_kernels(tmp_path: Path) -> None:
    model = grouped(HEAD + "(float[N,C] y) { p = MatMul(x, w) q = Add(p, b) y = Tanh(q) }")
    path = tmp_path / "m.onnx"
    path.write_bytes(ir.to_bytes(model))
    (again,), (first,) = groups_of(ir.from_proto(onnx.load(path))), groups_of(model)
    assert isinstance(again.kernel, TemplateKernel) and again.kernel == first.kernel


def test_wrong_shapes_fail_with_a_message() -> None:
    model = grouped("g (float[N,K] x, float[J,C] w) => (float[N,C] y) { y = MatMul(x, w) }")
    feeds = {"x": np.ones((2, 3), np.float32), "w": np.ones((4, 5), np.float32)}
    with pytest.raises(graphopt.GraphoptError, match="the depths differ"):
        graphopt.run(model, feeds)
