"""Products of matrices in C: compared with numpy in double precision."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import helper

from graphopt import ir
from graphopt.context import context_for
from graphopt.fusion.group_functions import kernels_of
from graphopt.fusion.template_kernel import NativeKernel, TemplateKernel
from graphopt.ort import session
from graphopt.passes.pipelines import make_pipeline
from tests.fusion.backends.c.harness import Unit, compiler, levels
from tests.model_testing import parse

pytestmark = pytest.mark.skipif(compiler() is None, reason="no C compiler")


def silu(x: np.ndarray) -> np.ndarray:
    return x / (1 + np.exp(-x))


def plain(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    return a @ b


#: Operators, and the reference; sizes are B, H, M, K and N.
CASES: dict[str, tuple[str, Callable[..., np.ndarray]]] = {
    "matrices": ("(float[M,K] a, float[K,N] b) => (float[M,N] y) { y = MatMul(a, b) }", plain),
    "weights": ("(float[B,M,K] a, float[K,N] b) => (float[B,M,N] y) { y = MatMul(a, b) }", plain),
    "batch": ("(float[B,M,K] a, float[B,K,N] b) => (float[B,M,N] y) { y = MatMul(a, b) }", plain),
    "broadcast": ("(float[B,1,M,K] a, float[H,K,N] b) => (float[B,H,M,N] y) { y = MatMul(a, b) }", plain),
    "row": ("(float[K] a, float[B,K,N] b) => (float[B,N] y) { y = MatMul(a, b) }", plain),
    "column": ("(float[B,M,K] a, float[K] b) => (float[B,M] y) { y = MatMul(a, b) }", plain),
    "vectors": ("(float[K] a, float[K] b) => (float y) { y = MatMul(a, b) }", plain),
    "scaled": (
        "(float[K,M] a, float[N,K] b) => (float[M,N] y) "
        "{ y = com.microsoft.FusedMatMul <transA = 1, transB = 1, alpha = 0.5> (a, b) }",
        lambda a, b: 0.5 * (a.T @ b.T),
    ),
    "gemm": (
        "(float[M,K] a, float[N,K] b, float[N] c) => (float[M,N] y) "
        "{ y = Gemm <transB = 1, alpha = 0.5, beta = 3.0> (a, b, c) }",
        lambda a, b, c: 0.5 * (a @ b.T) + (3 if a.size else 1) * c,  # onnxruntime copies c without products
    ),
    "column of summands": (
        "(float[K,M] a, float[K,N] b, float[M,1] c) => (float[M,N] y) { y = Gemm <transA = 1> (a, b, c) }",
        lambda a, b, c: a.T @ b + c,
    ),
    "transposed heads": (
        "(float[B,M,H,K] a, float[B,N,H,K] b) => (float[B,H,M,N] y) { at = Transpose <perm = [0,2,1,3]> (a) "
        "bt = Transpose <perm = [0,2,3,1]> (b) y = MatMul(at, bt) }",
        lambda a, b: a.transpose(0, 2, 1, 3) @ b.transpose(0, 2, 3, 1),
    ),
    "epilogue": (
        "(float[B,M,K] a, float[K,N] b, float[N] c, float[B,M,N] r) => (float[B,M,N] y) "
        "{ p = MatMul(a, b) q = Add(p, c) s = Sigmoid(q) t = Mul(q, s) y = Add(t, r) }",
        lambda a, b, c, r: silu(a @ b + c) + r,
    ),
}
#: Rows and columns around the sizes of tiles, and depths around the size of a partial sum.
SIZES = [
    *itertools.product((1, 2, 7, 15), (1, 9, 300), (1, 3, 33, 70)),
    (31, 64, 17), (6, 512, 64), (3, 1, 1030), (9, 40, 1030), (40, 30, 5), (130, 20, 40),
]  # fmt: skip
ZEROS = [(0, 3, 4), (3, 0, 4), (3, 4, 0), (0, 0, 0)]


def kernel_of(text: str) -> NativeKernel:
    return kernel_of_model(parse("g " + text))


def kernel_of_model(model: ir.Model) -> NativeKernel:
    with context_for(model) as cx:
        make_pipeline("fuse-groups{kernels=all}").run(model, cx)
    (kernel,) = kernels_of(model)
    assert isinstance(kernel, TemplateKernel)
    return kernel


def operands(text: str, m: int, k: int, n: int, seed: int = 0) -> list[np.ndarray]:
    random = np.random.default_rng(seed)
    sizes = {"B": 2, "H": 3, "M": m, "K": k, "N": n, "1": 1}
    found = []
    for port in text[1 : text.index(")")].split(", "):
        dims = port[port.index("[") + 1 : port.index("]")].split(",")
        found.append(random.standard_normal([sizes[dim] for dim in dims]).astype(np.float32))
    return found


@pytest.fixture(name="units", scope="module", params=levels())
def _units(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Unit]:
    kernels = [kernel_of(text) for text, _ in CASES.values()]
    yield Unit(kernels, tmp_path_factory.mktemp("gemm"), request.param, ["-DGO_CHUNK=4096"])


@pytest.mark.parametrize("constant", [False, True], ids=["variable", "constant"])
@pytest.mark.parametrize("name", CASES)
def test_products_equal_those_in_double_precision(units: Unit, name: str, constant: bool) -> None:
    text, reference = CASES[name]
    for m, k, n in [*SIZES, *ZEROS]:
        given = operands(text, m, k, n)
        (found,) = units.run(list(CASES).index(name), given, constant=constant)
        expected = reference(*(array.astype(float) for array in given))
        assert found.shape == expected.shape
        # 2⁻²² is four units in the last place; each of the summands has a magnitude of about 1.
        bound = (1 + reference(*(abs(array.astype(float)) for array in given))) * 2**-22
        assert np.all(abs(found - expected) <= bound), (m, k, n)


@pytest.mark.parametrize("name", ["matrices", "batch", "gemm", "transposed heads", "column"])
def test_products_propagate_nan_and_infinity(units: Unit, name: str) -> None:
    text, reference = CASES[name]
    for (m, k, n), value in itertools.product(
        [(15, 9, 33), (1, 40, 20), (4, 17, 3)], (np.nan, np.inf, -np.inf)
    ):
        for operand in (0, 1):
            given = operands(text, m, k, n)
            given[operand].reshape(-1)[given[operand].size // 2] = value
            (found,) = units.run(list(CASES).index(name), given)
            with np.errstate(invalid="ignore"):
                expected = reference(*(array.astype(float) for array in given))
            np.testing.assert_array_equal(np.isnan(found), np.isnan(expected))
            special = ~np.isfinite(expected)
            np.testing.assert_array_equal(found[special], expected[special].astype(np.float32))


def test_chunks_of_work_do_not_change_a_bit(tmp_path: Path) -> None:
    kernel, level = kernel_of(CASES["batch"][0]), levels()[-1]
    units = []
    for number, chunk in enumerate((64, 1 << 26)):
        (tmp_path / str(number)).mkdir()
        units.append(Unit([kernel], tmp_path / str(number), level, [f"-DGO_CHUNK={chunk}"]))
    for m, k, n in [(130, 20, 40), (3, 300, 700), (1, 70, 2100), (50, 33, 1), (2, 600, 3)]:
        given = operands(CASES["batch"][0], m, k, n)
        results = [unit.run(0, given)[0] for unit in units]
        assert units[0].chunks > units[1].chunks
        np.testing.assert_array_equal(*results)


def test_factors_may_be_infinite_or_nan(tmp_path: Path) -> None:
    factors = (np.inf, -np.inf, np.nan)
    values = [helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, [2, 2]) for name in "aby"]
    kernels = []
    for factor in factors:
        node = helper.make_node("Gemm", ["a", "b"], ["y"], alpha=factor)
        graph = helper.make_graph([node], "g", values[:2], values[2:])
        proto = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)
        kernels.append(kernel_of_model(ir.from_proto(proto)))
    a, b = np.array([[1, 2], [3, -4]], np.float32), np.array([[1, 3], [2, 1]], np.float32)
    unit = Unit(kernels, tmp_path)
    for index, factor in enumerate(factors):
        np.testing.assert_array_equal(unit.run(index, [a, b])[0], a @ b * np.float32(factor))


def test_operands_that_do_not_match_are_refused(units: Unit) -> None:
    random = np.random.default_rng(0)
    a, b = (random.standard_normal(shape).astype(np.float32) for shape in ((2, 3, 4), (2, 5, 6)))
    with pytest.raises(RuntimeError):
        units.run(list(CASES).index("batch"), [a, b])


def test_errors_are_at_most_twice_those_of_onnxruntime(units: Unit) -> None:
    """The error of long sums grows as that of blocked sums."""
    model = parse("g " + CASES["matrices"][0])
    create = session.create(ir.to_proto(model).SerializeToString(), optimizations="off")
    for k in (1000, 5000):
        given = operands(CASES["matrices"][0], 20, k, 40)
        expected = given[0].astype(float) @ given[1].astype(float)
        (other,) = session.run(create, dict(zip("ab", given, strict=True)))
        for constant in (False, True):
            (found,) = units.run(list(CASES).index("matrices"), given, constant=constant)
            assert np.sqrt(np.mean((found - expected) ** 2)) <= 2 * np.sqrt(np.mean((other - expected) ** 2))
