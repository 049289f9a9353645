"""Random models: rules' patterns and operators at random, in graphs, bodies and functions."""

from __future__ import annotations

from collections.abc import Sequence
from random import Random
from typing import Any

import numpy as np
import onnx
from onnx import helper

from tests.fuzz.graphs.bodies import HOLDERS
from tests.fuzz.graphs.grower import SYMBOLS, Grower, type_of
from tests.fuzz.graphs.operators import RANDOM, grow, known
from tests.fuzz.graphs.patterns import PATTERNS, instantiate

OPSETS = (7, 8, 9, 10, 11, 12, 13, 14, 15, 16, 17, 18, 18, 19, 20, 21, 22, 23, 24)
#: The first IR version that can express each opset.
_IR_VERSIONS = ((24, 12), (23, 11), (21, 10), (19, 9), (15, 8), (12, 7), (11, 6), (10, 5), (9, 4), (7, 3))

#: Element types of inputs and operators in most steps of a graph; values of other types are rare.
_THEMES: list[tuple[tuple[Any, ...], str]] = [
    (
        (np.int64, np.int32, np.uint8, np.bool_),
        "BitShift BitwiseAnd BitwiseOr BitwiseXor BitwiseNot And Or Xor Not Mod Div Add Mul Sub Equal "
        "Where Cast NonZero ReduceMax Max Min CumSum Gather",
    ),
    (
        (np.uint8, np.float32, np.int8),
        "QuantizeLinear DequantizeLinear QLinearConv ConvInteger MatMulInteger Relu Transpose "
        "DynamicQuantizeLinear Reshape Concat Clip Add Slice Pad MaxPool Gather",
    ),
    (
        (np.float32, np.float64),
        "SequenceConstruct SplitToSequence SequenceAt SequenceLength SequenceInsert SequenceErase "
        "ConcatFromSequence OptionalGetElement OptionalHasElement Split Concat Unsqueeze",
    ),
    (
        (np.float32, np.float32, np.int64),
        "Shape Size Gather Slice Unsqueeze Squeeze Concat Reshape Expand ConstantOfShape Range Cast Mul "
        "Div Add Where Equal Tile ReduceProd Flatten Max",
    ),
    (
        (np.float32,),
        "Conv ConvTranspose MaxPool AveragePool BatchNormalization GlobalAveragePool Pad Mul Add Div Sub "
        "Clip Sigmoid Resize Upsample DepthToSpace Concat Gemm MatMul",
    ),
]


def generate(random: Random) -> onnx.ModelProto:
    """A model whose nodes run in onnxruntime one by one."""
    opset = OPSETS[random.randrange(len(OPSETS))]
    ir_version = next(version for since, version in _IR_VERSIONS if opset >= since)
    if ir_version < 10 and random.randrange(100) < 80:
        ir_version = max(ir_version, 8)
    g = Grower(random, opset, ir_version)
    theme = g.choose(*_THEMES) if g.chance(50) else None
    _inputs(g, theme[0] if theme else (np.float32, np.float32, np.float32, np.float64, np.int64))
    g.favourites = tuple(theme[1].split()) if theme else ()
    wanted = g.choose(5, 8, 12, 20, 30, 40)
    for _ in range(3 * wanted):
        if len(g.scope.nodes) >= wanted:
            break
        _step(g)
    return _finished(g)


def _inputs(g: Grower, dtypes: Sequence[Any]) -> None:
    shapes: list[list[int | str]] = [
        ["N", "H"], ["N", 4], [2, 3], ["N", 4, "H", "W"], ["N", "H", 4], [1, 3, 4], [3], [], ["N", 1, "H"]
    ]  # fmt: skip
    for _ in range(g.number(1, 3)):
        shape = g.choose(*shapes)
        if "W" in shape and "H" not in shape[: shape.index("W")]:
            continue
        g.input(g.choose(*dtypes), shape)
    if g.chance(20):
        g.input(g.choose(np.bool_, np.int32, np.uint8, np.float16), g.choose([], ["N"], [2, 3]))


def _step(g: Grower, depth: int = 0) -> None:
    """Perform one random growth step."""
    match g.random.randrange(100):
        case n if n < 45:
            instantiate(g, g.choose(*PATTERNS))
        case n if n < 57:
            _there_and_back(g)
        case n if n < 61 and depth < 2:
            g.choose(*HOLDERS)(g, lambda g: _fill(g, depth + 1))
        case _:
            op_type = g.choose(*(g.favourites if g.favourites and g.chance(75) else known(g)))
            if op_type not in RANDOM or g.chance(20):
                grow(g, op_type)


def _fill(g: Grower, depth: int) -> None:
    """A few nodes for a body or a function."""
    wanted = g.number(1, 6)
    for _ in range(3 * wanted):
        if len(g.scope.nodes) >= wanted:
            break
        _step(g, depth)


#: Operators between a view or Transpose and its inverse.
_BETWEEN = ("Relu", "Add", "Mul", "Sigmoid", "Cast", "Max", "Where", "Clip", "Neg", "Concat", "ReduceMax")


def _there_and_back(g: Grower) -> None:
    """A Transpose or view, elementwise operators, and the inverse Transpose or view."""
    x = g.pick(lambda x: x.ndim > 1)
    if x is None:
        return
    shape = g.shape(x)
    if g.chance(65):
        perm = g.random.sample(range(len(shape)), len(shape))
        y = g.op("Transpose", x, perm=perm)
    else:
        y = grow(g, g.choose("Reshape", "Flatten", "Squeeze", "Unsqueeze"), {0: x})
        perm = []
    for _ in range(g.number(0, 3)):
        made = y and grow(g, g.choose(*_BETWEEN), {0: y})
        y = made if isinstance(made, str) else y
    if y is None:
        return
    if perm and g.rank(y) == len(perm):
        g.op("Transpose", y, perm=[perm.index(axis) for axis in range(len(perm))])
    elif not perm:
        static = g.static(x)
        if static.count(None) <= 1:
            g.op("Reshape", y, g.ints(*(-1 if dim is None else dim for dim in static)))
        else:
            target = g.op("Shape", x)
            if target:
                g.op("Reshape", y, target)


def _finished(g: Grower) -> onnx.ModelProto:
    scope = g.root
    made = [name for node in scope.nodes for name in node.output if name in scope.values]
    read = {name for node in scope.nodes for name in node.input}
    names = [name for name in made if name not in read and not g.is_constant(name)][-4:]
    for pool, percent in ((made, 40), ([v.name for v in scope.inputs], 8), (list(scope.constants), 6)):
        tensors = [name for name in pool if isinstance(scope.values[name][0], np.ndarray)]
        if tensors and g.chance(percent):
            names.append(g.choose(*tensors))
    names = list(dict.fromkeys(names)) or made[-1:]
    if not names:
        names = [g.op("Identity", scope.inputs[0].name)] if scope.inputs else [g.constant(1.0)]
    if g.chance(10):
        again = g.op("Identity", g.choose(*names))
        names += [again] if again else []
    g.random.shuffle(names)
    outputs = [_output(g, name) for name in names]
    inputs = list(scope.inputs)
    if g.ir_version < 4:
        inputs += [
            helper.make_tensor_value_info(t.name, t.data_type, list(t.dims)) for t in scope.initializers
        ]
    graph = helper.make_graph(scope.nodes, "g", inputs, outputs, scope.initializers)
    if g.chance(15):
        graph.value_info.extend(
            helper.make_value_info(name, type_of(scope.values[name][0])) for name in made[:3]
        )
    return g.model(graph, g.ir_version)


def _output(g: Grower, name: str) -> onnx.ValueInfoProto:
    """Declared with all dims, as far as they are known, or with the rank alone."""
    value: Any = g.scope.values[name][0]
    declared = helper.make_value_info(name, type_of(value))
    if not isinstance(value, np.ndarray) or g.places < 2 or g.chance(50):
        return declared
    symbols = {sizes: symbol for symbol, sizes in SYMBOLS.items()}
    for dim, (a, b) in zip(declared.type.tensor_type.shape.dim, g.sizes(name), strict=False):
        if a == b:
            dim.dim_value = a
        elif (a, b) in symbols:
            dim.dim_param = symbols[a, b]
    return declared
