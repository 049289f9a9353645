"""The subjects of calibration for templates: a node in onnxruntime and its template, at real shapes."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import field
from functools import cache, partial
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from graphopt import ir
from graphopt.analysis.cost import cost_of
from graphopt.context import context_for
from graphopt.cost import Axis
from graphopt.cost.calibration_models import UNFUSED, CompetingModels, Subject
from graphopt.fusion.backend import Backend
from graphopt.fusion.group_functions import kernels_of
from graphopt.fusion.kernel_policy import Kernels
from graphopt.fusion.template_policy import template_name
from graphopt.fusion.template_table import has_template
from graphopt.ort.session_options import SessionChoice
from graphopt.transforms.fusion.fuse_groups import FuseGroups
from graphopt.util.disk_store import Store
from graphopt.util.lazy_dataclass import dataclass

_SHARED = "com.microsoft"


@dataclass(frozen=True)
class TemplateCase:
    """One operator in one class of shapes.

    Attributes:
        op: the operator of the figures.
        case: the class of shapes (:func:`graphopt.fusion.template_policy.shape_class`).
        build: builds the model for some sizes.
        sizes: arguments of ``build``, with increasing numbers of operations.
        dtype: element type of the figures.
    """

    op: str
    case: str
    build: Callable[..., onnx.ModelProto] = field(hash=False)
    sizes: tuple[tuple[Any, ...], ...]
    dtype: str = "float"

    def models(self) -> dict[int, onnx.ModelProto]:
        """The models by number of operations."""
        built = [self.build(*sizes) for sizes in self.sizes]
        return {_operations(model): model for model in built}


def _operations(model: onnx.ModelProto) -> int:
    """The operations of the product in ``model``."""
    loaded = ir.from_proto(model)
    with context_for(loaded) as cx:
        costs = [cost_of(node, cx.facts) for node in loaded.graph]
    return max(cost.flops for cost in costs if cost is not None and isinstance(cost.flops, int))


def _model(
    nodes: Sequence[onnx.NodeProto],
    inputs: Mapping[str, tuple[Any, ...]],
    weights: Mapping[str, np.ndarray],
    kind: int = TensorProto.FLOAT,
) -> onnx.ModelProto:
    graph = helper.make_graph(
        list(nodes),
        "subject",
        [helper.make_tensor_value_info(name, kind, shape) for name, shape in inputs.items()],
        [helper.make_tensor_value_info("out", TensorProto.FLOAT, None)],
        [numpy_helper.from_array(array, name) for name, array in weights.items()],
    )
    versions = [helper.make_opsetid("", 21), helper.make_opsetid(_SHARED, 1)]
    return helper.make_model(graph, opset_imports=versions, ir_version=10)


def _floats(*shape: int) -> np.ndarray:
    return np.random.default_rng(len(shape)).standard_normal(shape, np.float32) * np.float32(0.1)


def _conv(x: tuple[int, ...], w: tuple[int, ...], stride: int = 1, pad: int = 0) -> onnx.ModelProto:
    axes = len(w) - 2
    attributes: dict[str, Any] = {"strides": [stride] * axes, "pads": [pad] * 2 * axes}
    node = helper.make_node("Conv", ["x", "w", "b"], ["out"], group=x[1] // w[1], **attributes)
    return _model([node], {"x": x}, {"w": _floats(*w), "b": _floats(w[0])})


def _product(a: tuple[int, ...], b: tuple[int, ...], constant: bool = True) -> onnx.ModelProto:
    node = helper.make_node("MatMul", ["x", "w"], ["out"])
    if constant:
        return _model([node], {"x": a}, {"w": _floats(*b)})
    return _model([node], {"x": a, "w": b}, {})


def _product_and_gelu(a: tuple[int, ...], b: tuple[int, ...]) -> onnx.ModelProto:
    nodes = [helper.make_node("MatMul", ["x", "w"], ["t"]), helper.make_node("Gelu", ["t"], ["out"])]
    return _model(nodes, {"x": a}, {"w": _floats(*b)})


def _low_bits(rows: int, depth: int, columns: int, bits: int, level: int = 0) -> onnx.ModelProto:
    block = 32
    rng = np.random.default_rng(0)
    weights = {
        "w": rng.integers(0, 256, (columns, depth // block, block * bits // 8), np.uint8),
        "s": np.abs(_floats(columns, depth // block)),
    }
    node = helper.make_node(
        "MatMulNBits",
        ["x", "w", "s"],
        ["out"],
        domain=_SHARED,
        K=depth,
        N=columns,
        bits=bits,
        accuracy_level=level,
        block_size=block,
    )
    return _model([node], {"x": (rows, depth)}, weights)


def _quantized(rows: int, depth: int, columns: int) -> onnx.ModelProto:
    """An int8 tensor times an int8 matrix, both dequantized."""
    weights = {
        "w": np.random.default_rng(0).integers(-127, 128, (depth, columns), np.int8),
        "s": np.array(0.02, np.float32),
        "z": np.array(0, np.int8),
    }
    nodes = [
        helper.make_node("DequantizeLinear", ["x", "s", "z"], ["a"]),
        helper.make_node("DequantizeLinear", ["w", "s", "z"], ["b"]),
        helper.make_node("MatMul", ["a", "b"], ["out"]),
    ]
    return _model(nodes, {"x": (rows, depth)}, weights, TensorProto.INT8)


def _recurrent(op: str, gates: int, steps: int, batch: int, depth: int, units: int) -> onnx.ModelProto:
    weights = {"w": _floats(1, gates * units, depth), "r": _floats(1, gates * units, units)}
    node = helper.make_node(op, ["x", "w", "r"], ["out"], hidden_size=units)
    return _model([node], {"x": (steps, batch, depth)}, weights)


_GATES = {"LSTM": 4, "GRU": 3, "RNN": 1}

#: The operators with templates, at the shapes of real models.
TEMPLATE_CASES: tuple[TemplateCase, ...] = (
    TemplateCase("Conv", "1d, 1 channel in", _conv, (
        ((1, 1, 640), (258, 1, 256), 128), ((20, 1, 640), (258, 1, 256), 128),
        ((1, 1, 43844), (8, 1, 512), 4),
    )),
    TemplateCase("Conv", "1d", _conv, (
        ((20, 64, 2), (64, 64, 3), 1, 1), ((20, 128, 4), (64, 128, 3), 2, 1),
        ((20, 129, 4), (128, 129, 3), 1, 1),
    )),
    TemplateCase("Conv", "2d, 3×3", _conv, (
        ((1, 64, 16, 16), (64, 64, 3, 3), 1, 1), ((1, 96, 32, 32), (32, 96, 3, 3), 1, 1),
        ((1, 64, 56, 56), (64, 64, 3, 3), 1, 1),
    )),
    TemplateCase("Conv", "2d, 1×1", _conv, (
        ((1, 64, 8, 8), (128, 64, 1, 1)), ((1, 192, 16, 16), (64, 192, 1, 1)),
        ((1, 256, 28, 28), (128, 256, 1, 1)),
    )),
    TemplateCase("Conv", "2d, depthwise", _conv, (
        ((1, 64, 14, 14), (64, 1, 3, 3), 1, 1), ((1, 72, 56, 56), (72, 1, 3, 3), 1, 1),
    )),
    TemplateCase("MatMul", "row", _product, (
        ((1, 512), (512, 2048)), ((1, 1024), (1024, 4096)),
    )),
    TemplateCase("MatMul", "column", _product, (((64, 256), (256, 1)), ((2048, 256), (256, 1)))),
    TemplateCase("MatMul", "constant", _product, (
        ((16, 256), (256, 256)), ((64, 256), (256, 1024)), ((128, 768), (768, 3072)),
    )),
    TemplateCase("MatMul", "constant, epilogue", _product_and_gelu, (
        ((16, 256), (256, 256)), ((64, 256), (256, 1024)), ((128, 768), (768, 3072)),
    )),
    TemplateCase("MatMul", "computed, few rows", _product, (
        ((4, 1, 128), (4, 128, 64), False), ((4, 4, 128), (4, 128, 64), False),
        ((4, 16, 512), (4, 512, 64), False),
    )),
    TemplateCase("MatMul", "computed", _product, (
        ((4, 64, 64), (4, 64, 64), False), ((12, 128, 64), (12, 64, 128), False),
    )),
    TemplateCase("MatMul", "constant", _quantized, (
        (16, 256, 256), (64, 256, 1024), (128, 768, 3072),
    ), "int8"),
    *(
        TemplateCase("MatMulNBits", f"{bits} bits, {case}{kind}", _low_bits, tuple(
            (rows, depth, columns, bits, level) for rows, depth, columns in sizes
        ))
        for bits in (4, 8)
        for kind, level in (("", 0), (" of int8", 4))
        for case, sizes in (
            ("1 row", ((1, 256, 688), (1, 256, 4000))),
            *((("few rows", ((4, 256, 688), (16, 256, 688), (16, 256, 4000))),) if level == 0 else ()),
            ("rows", ((16 if level else 32, 256, 688), (64, 256, 688), (64, 256, 4000))),
        )
    ),
    *(
        TemplateCase(op, case, partial(_recurrent, op, gates), tuple(
            (steps, batch, depth, units)
            for steps, depth, units in ((20, 64, 64), (20, 128, 128), (50, 256, 128))
        ))
        for op, gates in _GATES.items()
        for case, batch in (("1 row", 1), ("rows", 8))
    ),
)  # fmt: skip


def template_subjects(
    backend: Backend,
    store: Store,
    compiler: str | None = None,
    cases: Sequence[TemplateCase] = TEMPLATE_CASES,
) -> list[Subject]:
    """The subjects for the templates of ``cases`` that exist; their kernels are built for the first of them.

    A back end without templates has no subjects.

    Raises (when the first models are made):
        NoCompiler: no C compiler was found.
        RuntimeFailure: the compiler fails.
    """
    supported = cases if backend.features.templates else ()
    models = {case: found for case in supported if (found := _with_templates(case))}

    @cache
    def built() -> tuple[dict[tuple[TemplateCase, int], bytes], SessionChoice]:
        return _build(backend, store, compiler, models)

    return [
        Subject(case.op, case.case, (_axis(found),), partial(_make, case, found, built), case.dtype)
        for case, found in models.items()
    ]


def _with_templates(case: TemplateCase) -> dict[int, onnx.ModelProto]:
    """The models of ``case``; empty if its operator has no template."""
    models = case.models()
    first = ir.from_proto(next(iter(models.values())))
    return models if any(has_template(node) for node in first.graph) else {}


def _axis(models: Mapping[int, onnx.ModelProto]) -> Axis:
    sizes = tuple(sorted(models))
    return Axis("operations", sizes, sizes[len(sizes) // 2])


def _make(
    case: TemplateCase,
    models: Mapping[int, onnx.ModelProto],
    built: Callable[[], tuple[dict[tuple[TemplateCase, int], bytes], SessionChoice]],
    operations: int,
) -> CompetingModels:
    grouped, choice = built()
    name = template_name(case.op)
    plain = models[operations]
    found = {UNFUSED: plain.SerializeToString(), name: grouped[case, operations]}
    return CompetingModels(found, _feeds(plain), {name: choice})


def _feeds(model: onnx.ModelProto) -> dict[str, np.ndarray]:
    feeds = {}
    for port in model.graph.input:
        shape = [dim.dim_value for dim in port.type.tensor_type.shape.dim]
        found = np.random.default_rng(1).standard_normal(shape, np.float32)
        is_int8 = port.type.tensor_type.elem_type == TensorProto.INT8
        feeds[port.name] = (found * 40).clip(-127, 127).astype(np.int8) if is_int8 else found
    return feeds


def _build(
    backend: Backend,
    store: Store,
    compiler: str | None,
    models: Mapping[TemplateCase, Mapping[int, onnx.ModelProto]],
) -> tuple[dict[tuple[TemplateCase, int], bytes], SessionChoice]:
    """A model with a group for each case and size, and the session options for their kernels."""
    grouped = {
        (case, work): with_template(model) for case, found in models.items() for work, model in found.items()
    }
    kernels = {kernel.name: kernel for model in grouped.values() for kernel in kernels_of(model)}
    library = backend.build(list(kernels.values()), store, compiler=compiler)
    return {key: ir.to_bytes(model) for key, model in grouped.items()}, SessionChoice(
        libraries=(str(library),)
    )


def with_template(proto: onnx.ModelProto) -> ir.Model:
    """The model of ``proto``, whose product is a group."""
    model = ir.from_proto(proto)
    with context_for(model) as cx:
        FuseGroups(kernels=Kernels.ALL).run(model, cx)
    return model
