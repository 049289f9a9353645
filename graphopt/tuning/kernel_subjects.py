"""The subjects of calibration for kernels of single nodes: a node in onnxruntime, and its kernel."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import field
from functools import cache, partial

import numpy as np
import onnx.parser

from graphopt import ir
from graphopt.context import Options, context_for
from graphopt.cost import Axis, Costs, Grid
from graphopt.cost.calibration_models import UNFUSED, CompetingModels, Subject
from graphopt.fusion.backend import Backend
from graphopt.fusion.group_functions import kernels_of
from graphopt.fusion.single_nodes import kernel_name
from graphopt.ort.devices import CPU, Device, parse_device
from graphopt.ort.session_options import SessionChoice
from graphopt.transforms.fusion.fuse_groups import FuseGroups
from graphopt.util.disk_store import Store
from graphopt.util.lazy_dataclass import dataclass

#: Number of elements of the largest operand; unknown sizes count as medium ones.
_ELEMENTS = Axis("elements", (1024, 16384, 262144, 4194304), 16384)
#: Sizes of the axes of images and of rows that do not grow.
_CHANNELS, _COLUMNS = 64, 256
_IMAGE = f"[1,{_CHANNELS},N]"
_ROWS = f"[N,{_COLUMNS}]"
_TYPES = {"float": np.float32, "int64": np.int64, "int32": np.int32, "uint8": np.uint8, "bool": np.bool_}


@dataclass(frozen=True)
class SingleNode:
    """One operator in one case.

    Attributes:
        op: the operator.
        body: the node with the inputs x, y, …, and the output ``out``.
        inputs: declarations, such as ``float[N,256]``, by name; N grows with the number of elements.
        output: declaration of the output.
        case: the case of its figures.
        dtype: element type of its figures.
        positive: whether all elements are positive.
    """

    op: str
    body: str
    inputs: Mapping[str, str] = field(hash=False)
    output: str
    case: str = ""
    dtype: str = "float"
    positive: bool = False

    def model(self) -> onnx.ModelProto:
        """The model of the node."""
        inputs = ", ".join(f"{declaration} {name}" for name, declaration in self.inputs.items())
        header = '<ir_version: 10, opset_import: ["": 21]>'
        text = f"{header} g ({inputs}) => ({self.output} out) {{ {self.body} }}"
        return onnx.parser.parse_model(text)

    def feeds(self, elements: int) -> dict[str, np.ndarray]:
        """Random inputs; the largest has ``elements`` elements."""
        rng = np.random.default_rng(0)
        return {name: self._array(declaration, elements, rng) for name, declaration in self.inputs.items()}

    def _array(self, declaration: str, elements: int, rng: np.random.Generator) -> np.ndarray:
        kind, _, dims = declaration.removesuffix("]").partition("[")
        sizes = [1 if dim == "N" else int(dim) for dim in dims.split(",") if dim]
        fixed = int(np.prod(sizes))
        shape = [max(1, elements // fixed) if dim == "N" else int(dim) for dim in dims.split(",") if dim]
        if kind == "bool":
            return rng.integers(0, 2, shape).astype(bool)
        if kind != "float":
            return rng.integers(0, 100, shape).astype(_TYPES[kind])
        found = rng.standard_normal(shape).astype(np.float32)
        return np.abs(found) + np.float32(0.1) if self.positive else found


def _unary(op: str, *, positive: bool = False) -> SingleNode:
    return SingleNode(op, f"out = {op}(x)", {"x": f"float{_IMAGE}"}, f"float{_IMAGE}", positive=positive)


def _constant(kind: str, text: str, name: str = "c") -> str:
    return f"{name} = Constant <value = {kind} {{{text}}}> () "


_UNARY = (
    "Sin", "Cos", "Sign", "Round", "Floor", "Ceil", "Elu", "Selu", "Celu", "HardSwish", "Softplus",
    "Softsign", "Mish", "Reciprocal",
)  # fmt: skip

#: The operators for which a kernel may be faster.
SINGLE_NODES: tuple[SingleNode, ...] = (
    SingleNode(
        "PRelu", "out = PRelu(x, s)", {"x": f"float{_IMAGE}", "s": f"float[{_CHANNELS},1]"}, f"float{_IMAGE}"
    ),
    *(_unary(op) for op in _UNARY),
    *(_unary(op, positive=True) for op in ("Log", "Sqrt")),
    SingleNode(
        "Pow",
        _constant("float", "1.7") + "out = Pow(x, c)",
        {"x": f"float{_IMAGE}"},
        f"float{_IMAGE}",
        positive=True,
    ),
    SingleNode(
        "Where",
        "out = Where(x, y, z)",
        {"x": f"bool{_IMAGE}", "y": f"float{_IMAGE}", "z": "float[1]"},
        f"float{_IMAGE}",
    ),
    *(
        SingleNode(op, body, {"x": f"{kind}{_IMAGE}"}, f"{kind}{_IMAGE}", dtype=kind)
        for kind in ("int64", "int32")
        for op, body in (
            ("Mod", _constant(kind, "7") + "out = Mod(x, c)"),
            ("Clip", _constant(kind, "3") + _constant(kind, "50", "d") + "out = Clip(x, c, d)"),
        )
    ),
    *(
        SingleNode(op, f"out = {op} <axis = 1> (x)", {"x": f"float{_IMAGE}"}, f"float{_IMAGE}", "inner")
        for op in ("Softmax", "LogSoftmax")
    ),
    SingleNode(
        "LayerNormalization",
        "out = LayerNormalization(x, s, b)",
        {"x": f"float{_ROWS}", "s": f"float[{_COLUMNS}]", "b": f"float[{_COLUMNS}]"},
        f"float{_ROWS}",
    ),
    SingleNode(
        "InstanceNormalization",
        "out = InstanceNormalization(x, s, b)",
        {"x": f"float{_IMAGE}", "s": f"float[{_CHANNELS}]", "b": f"float[{_CHANNELS}]"},
        f"float{_IMAGE}",
    ),
    SingleNode(
        "ReduceL2",
        _constant("int64[1]", "1") + "out = ReduceL2(x, c)",
        {"x": f"float{_ROWS}"},
        "float[N,1]",
    ),
)


def kernel_subjects(
    backend: Backend, store: Store, compiler: str | None = None, nodes: Sequence[SingleNode] = SINGLE_NODES
) -> list[Subject]:
    """The subjects for the kernels of ``nodes`` on the device of ``backend``.

    The kernels are built when the first of them is needed.

    Raises (when the first models are made):
        NoCompiler: no compiler was found.
        RuntimeFailure: the compiler fails.
    """

    @cache
    def built() -> tuple[dict[SingleNode, bytes], SessionChoice]:
        return _build(backend, store, compiler, nodes)

    return [
        Subject(node.op, node.case, (_ELEMENTS,), partial(_make, node, built), node.dtype) for node in nodes
    ]


def _make(
    node: SingleNode, built: Callable[[], tuple[dict[SingleNode, bytes], SessionChoice]], elements: int
) -> CompetingModels:
    models, choice = built()
    name = kernel_name(node.op)
    found = {UNFUSED: node.model().SerializeToString(), name: models[node]}
    return CompetingModels(found, node.feeds(elements), {name: choice})


def _build(
    backend: Backend, store: Store, compiler: str | None, nodes: Sequence[SingleNode]
) -> tuple[dict[SingleNode, bytes], SessionChoice]:
    """A model with a group for each of ``nodes``, and the session options for their kernels."""
    device = parse_device(backend.device)
    assert device is not None, backend.device
    models = {node: grouped(node, device) for node in nodes}
    kernels = {kernel.name: kernel for model in models.values() for kernel in kernels_of(model)}
    library = backend.build(list(kernels.values()), store, compiler=compiler)
    return {node: ir.to_bytes(model) for node, model in models.items()}, SessionChoice(
        libraries=(str(library),)
    )


def grouped(node: SingleNode, device: Device = CPU) -> ir.Model:
    """The model of ``node``, as a group for ``device``."""
    model = ir.from_proto(node.model())
    axis = Axis("elements", (1,), 1)
    grid = Grid(kernel_name(node.op), node.case, node.dtype, (axis,), (0.5,), (0.9,))
    costs = Costs("a table for groups of one", device.kind, grids=(grid,))
    with context_for(model, Options(costs=costs, device=device)) as cx:
        FuseGroups().run(model, cx)
    return model
