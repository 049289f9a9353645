"""Products of weights of few bits, and of quantized operands, compared with double precision and with onnxruntime."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper

from graphopt import ir
from graphopt.context import context_for
from graphopt.fusion.group_functions import kernels_of
from graphopt.fusion.template_kernel import TemplateKernel
from graphopt.ops.graphopt_operators import NATIVE_DOMAIN
from graphopt.ort import session
from graphopt.ort.session_options import SessionChoice
from graphopt.passes.pipelines import make_pipeline
from tests.fusion.backends.c.runtime.samples import compiled
from tests.fuzz.kernels.batches import cpu_levels, library

pytestmark = compiled

Array = np.ndarray
_TYPES: dict[str, Any] = {"f": np.float32, "u": np.uint8, "i": np.int8}


class Model:
    """A model under construction: nodes, initializers, inputs and outputs."""

    def __init__(self) -> None:
        self.nodes: list[onnx.NodeProto] = []
        self.weights: dict[str, Array] = {}
        self.inputs: dict[str, onnx.ValueInfoProto] = {}
        self.outputs: list[onnx.ValueInfoProto] = []
        self.random = np.random.default_rng(0)

    def constant(self, array: Any) -> str:
        name = f"c{len(self.weights)}"
        self.weights[name] = np.asarray(array)
        return name

    def input(self, name: str, dtype: Any, *dims: int | str) -> str:
        element = helper.np_dtype_to_tensor_dtype(np.dtype(dtype))
        self.inputs[name] = helper.make_tensor_value_info(name, element, dims)
        return name

    def node(self, op: str, inputs: list[str], output: str, **attributes: Any) -> str:
        self.nodes.append(helper.make_node(op, inputs, [output], **attributes))
        return output

    def output(self, name: str, dtype: Any) -> None:
        element = helper.np_dtype_to_tensor_dtype(np.dtype(dtype))
        self.outputs.append(helper.make_tensor_value_info(name, element, None))

    def bytes(self, kind: str, *shape: int) -> Array:
        low, high = (0, 256) if kind == "u" else (-128, 128)
        return self.random.integers(low, high, shape).astype(_TYPES[kind])

    def proto(self) -> onnx.ModelProto:
        initializers = [numpy_helper.from_array(array, name) for name, array in self.weights.items()]
        graph = helper.make_graph(self.nodes, "g", list(self.inputs.values()), self.outputs, initializers)
        opsets = [helper.make_opsetid("", 17), helper.make_opsetid("com.microsoft", 1)]
        return helper.make_model(graph, opset_imports=opsets, ir_version=9)


class Compiled:
    """A model, the same with kernels for all its products, and a library for each CPU level."""

    def __init__(self, proto: onnx.ModelProto, folder: Path) -> None:
        self.text = proto.SerializeToString()
        self.model = ir.from_proto(proto)
        with context_for(self.model) as cx:
            make_pipeline("fuse-groups{kernels=all}").run(self.model, cx)
        self.kernels = kernels_of(self.model)
        self.libraries = {
            level: str(library(self.kernels, folder / str(level), (level,))) for level in cpu_levels()
        }
        self.plain = session.create(self.text, optimizations="off", threads=1)

    @property
    def templates(self) -> list[str]:
        return [kernel.template for kernel in self.kernels if isinstance(kernel, TemplateKernel)]

    def run(self, feeds: Mapping[str, Array], level: int, threads: int) -> dict[str, Array]:
        choice = SessionChoice(libraries=(self.libraries[level],))
        made = session.create(ir.to_bytes(self.model), optimizations="off", threads=threads, choice=choice)
        return dict(
            zip([output.name for output in made.get_outputs()], session.run(made, feeds), strict=True)
        )

    def run_plain(self, feeds: Mapping[str, Array]) -> dict[str, Array]:
        return dict(
            zip([o.name for o in self.plain.get_outputs()], session.run(self.plain, feeds), strict=True)
        )


# MatMulNBits

#: bits, size of blocks, depth, columns, with zero points, with a bias, accuracy level
_NBITS = [
    (4, 16, 48, 33, True, True, 0),
    (4, 32, 100, 5, False, False, 1),
    (4, 32, 688, 300, True, False, 0),
    (4, 256, 300, 64, False, True, 0),
    (8, 16, 16, 1, True, False, 0),
    (8, 32, 130, 70, False, True, 0),
    (8, 128, 256, 31, True, True, 0),
    (4, 32, 688, 300, False, True, 4),
    (4, 16, 48, 33, True, False, 4),
    (4, 256, 300, 64, True, False, 4),
    (8, 32, 130, 70, False, True, 4),
]


def _nbits_model() -> tuple[onnx.ModelProto, dict[str, tuple[Array, Array]]]:
    """Products named by their cases, and dequantized weights and biases in double precision."""
    m, expected = Model(), {}
    for number, (bits, size, depth, columns, has_zeros, has_bias, level) in enumerate(_NBITS):
        blocks = -(-depth // size)
        packed = m.bytes("u", columns, blocks, size * bits // 8)
        scales = m.random.uniform(0.01, 0.03, (columns, blocks)).astype(np.float32)
        zeros = m.bytes("u", columns, -(-blocks * bits // 8))
        bias = m.random.standard_normal(columns).astype(np.float32)
        x = m.input(f"x{depth}", np.float32, "B", "M", depth)
        inputs = [x, m.constant(packed), m.constant(scales.reshape(-1))]
        inputs.append(m.constant(zeros.reshape(-1)) if has_zeros else "")
        inputs += ["", m.constant(bias)] if has_bias else []
        attributes = {"K": depth, "N": columns, "bits": bits, "block_size": size, "accuracy_level": level}
        y = m.node("MatMulNBits", inputs, f"y{number}", domain="com.microsoft", **attributes)
        m.output(y, np.float32)
        m.output(
            m.node("Relu", [m.node("Sub", [y, m.constant(np.float32(0.5))], f"s{number}")], f"r{number}"),
            np.float32,
        )
        values = _unpacked(packed.reshape(columns, -1), bits).reshape(columns, blocks, size)
        offsets = _unpacked(zeros, bits)[:, :blocks, None] if has_zeros else 2.0 ** (bits - 1)
        weights = ((values - offsets) * scales[..., None].astype(np.float64)).reshape(columns, -1)[:, :depth]
        expected[y] = weights.T, bias.astype(np.float64) * has_bias
    return m.proto(), expected


def _rounded(x: Array, size: int) -> Array:
    """``x`` with blocks of the last axis rounded to int8, the largest magnitude being 127."""
    blocks = -(-x.shape[-1] // size)
    padded = np.zeros((*x.shape[:-1], blocks * size), np.float32)
    padded[..., : x.shape[-1]] = x
    padded = padded.reshape(*x.shape[:-1], blocks, size)
    most = np.abs(padded).max(-1, keepdims=True, initial=0)
    whole = np.rint(padded * np.divide(127, most, where=most > 0, out=np.zeros_like(most)))
    found = whole.astype(np.float64) * (most / np.float32(127))
    return found.reshape(*x.shape[:-1], blocks * size)[..., : x.shape[-1]]


def _unpacked(data: Array, bits: int) -> Array:
    wide = (
        data.astype(np.float64) if bits == 8 else np.stack([data & 15, data >> 4], -1).reshape(len(data), -1)
    )
    return wide.astype(np.float64)


@pytest.fixture(scope="module")
def nbits(tmp_path_factory: pytest.TempPathFactory) -> tuple[Compiled, dict[str, tuple[Array, Array]]]:
    proto, expected = _nbits_model()
    return Compiled(proto, tmp_path_factory.mktemp("nbits")), expected


def test_each_product_with_weights_of_few_bits_has_a_template(nbits: Any) -> None:
    assert nbits[0].templates == ["nbits"] * len(_NBITS)


@pytest.mark.parametrize(("rows", "is_taken"), [(1, False), (15, False), (16, True), (64, True)])
def test_int8_products_of_many_rows_have_kernels(rows: int, is_taken: bool) -> None:
    m = Model()
    scales = np.ones(64 * 8, np.float32)
    parts = [m.input("x", np.float32, rows, 256), m.constant(m.bytes("u", 64, 8, 16)), m.constant(scales)]
    attributes = {"K": 256, "N": 64, "bits": 4, "block_size": 32, "accuracy_level": 4}
    m.output(m.node("MatMulNBits", parts, "y", domain="com.microsoft", **attributes), np.float32)
    model = ir.from_proto(m.proto())
    with context_for(model) as cx:
        make_pipeline("fuse-groups").run(model, cx)
    assert len(kernels_of(model)) == int(is_taken)


@pytest.mark.parametrize("rows", ["M", 1, 16, 17])
def test_products_of_few_or_unknown_numbers_of_rows_have_kernels(rows: int | str) -> None:
    m = Model()
    scales = np.ones(64 * 8, np.float32)
    parts = [m.input("x", np.float32, rows, 256), m.constant(m.bytes("u", 64, 8, 16)), m.constant(scales)]
    attributes = {"K": 256, "N": 64, "bits": 4, "block_size": 32}
    m.output(m.node("MatMulNBits", parts, "y", domain="com.microsoft", **attributes), np.float32)
    model = ir.from_proto(m.proto())
    with context_for(model) as cx:
        make_pipeline("fuse-groups").run(model, cx)
    assert len(kernels_of(model)) == 1


@pytest.mark.parametrize("level", cpu_levels())
@pytest.mark.parametrize(
    "rows",
    [(1, 1), (1, 2), (3, 1), (2, 2), (1, 5), (1, 9), (1, 13), (2, 7), (1, 15), (2, 50), (0, 3), (1, 0)],
)
def test_products_with_weights_of_few_bits(nbits: Any, level: int, rows: tuple[int, int]) -> None:
    made, expected = nbits
    random = np.random.default_rng(sum(rows))
    depths = {case[2] for case in _NBITS}
    feeds = {
        f"x{depth}": random.standard_normal((*rows, depth)).astype(np.float32) for depth in sorted(depths)
    }
    plain, single = made.run_plain(feeds), made.run(feeds, level, 1)
    for number, (_, size, depth, _, _, _, accuracy) in enumerate(_NBITS):
        weights, bias = expected[f"y{number}"]
        x = feeds[f"x{depth}"].astype(np.float64)
        x = _rounded(x, size) if accuracy == 4 else x
        exact, sizes = x @ weights + bias, np.abs(x) @ np.abs(weights) + np.abs(bias)
        got, runtime = single[f"y{number}"], plain[f"y{number}"]
        assert got.shape == exact.shape
        error, other = np.abs(got - exact), np.abs(runtime - exact)
        # A sum of n products has rounding errors of about the root of n units of the sum of magnitudes.
        tolerance = np.maximum(2 * other, 2.0**-24 * 2 * np.sqrt(depth) * sizes)
        assert (error <= tolerance).all()
        assert (single[f"r{number}"] == np.maximum(got - np.float32(0.5), 0)).all()
    for name, values in made.run(feeds, level, 2).items():
        assert values.tobytes() == single[name].tobytes()


@pytest.mark.parametrize("level", cpu_levels())
@pytest.mark.parametrize("rows", [1, 6, 20])
@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_weights_of_few_bits_times_special_values(nbits: Any, level: int, rows: int, value: float) -> None:
    made, _ = nbits
    feeds = {f"x{case[2]}": np.ones((1, rows, case[2]), np.float32) for case in _NBITS}
    for x in feeds.values():
        x[0, 0, 3] = value
    plain, got = made.run_plain(feeds), made.run(feeds, level, 1)
    for number, case in enumerate(_NBITS):
        if case[-1] == 4:  # the rounding of numbers that are not finite is unspecified
            continue
        a, b = plain[f"y{number}"], got[f"y{number}"]
        assert (np.isnan(a) == np.isnan(b)).all()
        assert (np.where(np.isinf(a), a, 0) == np.where(np.isinf(b), b, 0)).all()


@pytest.mark.parametrize("level", cpu_levels())
@pytest.mark.parametrize("rows", [1, 6])
def test_weights_of_few_bits_times_denormal_numbers(nbits: Any, level: int, rows: int) -> None:
    """The inverse of the scale of such a block is infinite."""
    made, _ = nbits
    feeds = {f"x{case[2]}": np.full((1, rows, case[2]), 1e-40, np.float32) for case in _NBITS}
    for x in feeds.values():
        x[..., ::3] = 0
    plain, got = made.run_plain(feeds), made.run(feeds, level, 1)
    for number in range(len(_NBITS)):
        np.testing.assert_allclose(got[f"y{number}"], plain[f"y{number}"], rtol=0, atol=1e-35)


def test_a_product_of_other_rows_is_refused(nbits: Any) -> None:
    made, _ = nbits
    proto = ir.to_proto(made.model)
    for value in proto.graph.input:
        value.type.tensor_type.shape.dim[2].dim_param = "K"
    choice = SessionChoice(libraries=(made.libraries[cpu_levels()[-1]],))
    opened = session.create(proto.SerializeToString(), optimizations="off", threads=1, choice=choice)
    feeds = {f"x{case[2]}": np.ones((1, 2, case[2] + 1), np.float32) for case in _NBITS}
    with pytest.raises(Exception, match="expected"):
        session.run(opened, feeds)


# Quantized operands

#: types of a, b and the result, rows × depth × columns, one scale for each column of b, batches of b
_PRODUCTS = [
    (a, b, result, depth, columns, by_column, batched)
    for a, b, result, depth, columns, by_column, batched in [
        ("i", "i", "i", 256, 300, False, False),
        ("u", "i", "u", 300, 70, False, False),
        ("i", "u", "i", 130, 40, False, False),
        ("u", "u", "u", 64, 64, False, True),
        ("i", "i", "i", 33, 17, False, True),
        ("i", "i", "i", 1024, 48, True, False),
        ("u", "i", "f", 70, 33, True, False),
        ("i", "i", "f", 700, 9, False, False),
        ("f", "i", "f", 200, 100, True, False),
        ("f", "u", "i", 5, 3, False, False),
    ]
]


def _quantized_model() -> onnx.ModelProto:
    m = Model()
    for number, (a, b, result, depth, columns, by_column, batched) in enumerate(_PRODUCTS):
        x = m.input(f"a{number}", _TYPES[a], "B", "M", depth)
        if a != "f":
            parts = [x, m.constant(np.float32(0.0137)), m.constant(_TYPES[a](131 if a == "u" else 5))]
            x = m.node("DequantizeLinear", parts, f"ax{number}")
        count = columns if by_column else 1
        scale = m.random.uniform(0.005, 0.01, count).astype(np.float32)
        zero = np.full(count, 120 if b == "u" else 0 if number == 5 else -3, _TYPES[b])
        w = m.input(f"b{number}", _TYPES[b], "B", depth, columns) if batched else ""
        w = w or m.constant(m.bytes(b, depth, columns))
        parts = [w, *(m.constant(v if by_column else v[0]) for v in (scale, zero))]
        w = m.node("DequantizeLinear", parts, f"bx{number}", axis=2 if batched else 1)
        y = m.node("MatMul", [x, w], f"y{number}")
        if result == "f":
            m.output(y, np.float32)
            continue
        # The results fill the range of the type, and are saturated now and then.
        spread = np.float32(np.sqrt(depth) * (0.0137 * 74 if a != "f" else 1) * 0.0075 * 74 / 50)
        scaling = [m.constant(spread), m.constant(_TYPES[result](128 if result == "u" else 3))]
        q = m.node("QuantizeLinear", [y, *scaling], f"q{number}")
        m.output(q, _TYPES[result])
        if number in (0, 1):  # an epilogue
            again = m.node("DequantizeLinear", [q, *scaling], f"d{number}")
            added = m.node(
                "Add", [again, m.constant(m.random.standard_normal(columns).astype(np.float32))], f"e{number}"
            )
            m.outputs.pop()
            m.output(m.node("QuantizeLinear", [added, *scaling], f"r{number}"), _TYPES[result])
    return m.proto()


@pytest.fixture(scope="module")
def products(tmp_path_factory: pytest.TempPathFactory) -> Compiled:
    return Compiled(_quantized_model(), tmp_path_factory.mktemp("products"))


def _feeds(rows: tuple[int, int]) -> dict[str, Array]:
    m, feeds = Model(), {}
    for number, (a, b, _, depth, columns, _, batched) in enumerate(_PRODUCTS):
        floats = m.random.standard_normal((*rows, depth)).astype(np.float32)
        feeds[f"a{number}"] = floats if a == "f" else m.bytes(a, *rows, depth)
        if batched:
            feeds[f"b{number}"] = m.bytes(b, rows[0], depth, columns)
    return feeds


def test_each_product_of_quantized_operands_has_a_template(products: Compiled) -> None:
    assert products.templates == ["quantized_product"] * len(_PRODUCTS)
    called = [node.op_type for node in products.model.graph if node.domain != NATIVE_DOMAIN]
    assert [op for op in called if op not in ("Constant",)] == []


@pytest.mark.parametrize("level", cpu_levels())
@pytest.mark.parametrize("rows", [(1, 2), (3, 5), (1, 64), (2, 101), (0, 3), (2, 0)])
def test_products_of_quantized_operands_are_bit_identical(
    products: Compiled, level: int, rows: tuple[int, int]
) -> None:
    feeds = _feeds(rows)
    plain, single = products.run_plain(feeds), products.run(feeds, level, 1)
    for name, expected in plain.items():
        got = single[name]
        assert (got.shape, got.dtype) == (expected.shape, expected.dtype)
        if got.dtype == np.float32:
            np.testing.assert_allclose(got, expected, rtol=0, atol=2e-6 * np.abs(expected).max(initial=1))
        elif level >= 3:
            assert (got == expected).all()
        else:  # onnxruntime multiplies and adds in one instruction, the kernel in two
            apart = np.abs(got.astype(int) - expected)
            assert apart.max(initial=0) <= 1
            assert (apart > 0).mean() < 1e-3 if apart.size else True
    for name, values in products.run(feeds, level, 2).items():
        assert values.tobytes() == single[name].tobytes()


@pytest.mark.parametrize("level", cpu_levels())
def test_products_of_one_row_differ_by_rounding(products: Compiled, level: int) -> None:
    """onnxruntime adds products of a single row in another order."""
    feeds = _feeds((1, 1))
    plain, got = products.run_plain(feeds), products.run(feeds, level, 1)
    for name, expected in plain.items():
        if expected.dtype != np.float32:
            apart = np.abs(got[name].astype(int) - expected)
            assert apart.max() <= 1
            assert (apart > 0).sum() <= 1


@pytest.mark.parametrize("level", cpu_levels())
def test_a_quantized_result_of_nan_is_that_of_onnxruntime(products: Compiled, level: int) -> None:
    feeds = _feeds((1, 4))
    for value in feeds.values():
        if value.dtype == np.float32:
            value[0, 1:, 2] = [np.nan, np.inf, -np.inf]
    plain, got = products.run_plain(feeds), products.run(feeds, level, 1)
    assert (got["q9"] == plain["q9"]).all()
    assert (np.isnan(got["y8"]) == np.isnan(plain["y8"])).all()
