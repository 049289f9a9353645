"""Random graphs of operators between Transposes, with bodies, for tests of the pass ``layout``."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
import onnx
from onnx import helper

FLOAT, BOOL, INT64 = onnx.TensorProto.FLOAT, onnx.TensorProto.BOOL, onnx.TensorProto.INT64


@dataclass
class Graph:
    """A graph under construction: float tensors of one rank whose dims permute ``sizes``.

    Attributes:
        values: names of tensors, each with its axes: positions in ``sizes``.
    """

    random: random.Random
    sizes: list[int]
    opset: int
    prefix: str = ""
    nodes: list[onnx.NodeProto] = field(default_factory=list)
    constants: list[onnx.TensorProto] = field(default_factory=list)
    values: list[tuple[str, tuple[int, ...]]] = field(default_factory=list)
    others: list[str] = field(default_factory=list)
    perms: list[tuple[int, ...]] = field(default_factory=list)
    count: int = 0

    def name(self) -> str:
        self.count += 1
        return f"{self.prefix}v{self.count}"

    def node(self, op: str, *inputs: str, outputs: int = 1, **attributes: object) -> list[str]:
        names = [self.name() for _ in range(outputs)]
        self.nodes.append(
            helper.make_node(op, list(inputs), names, name=f"{self.prefix}n{self.count}", **attributes)
        )
        return names

    def constant(self, array: np.ndarray) -> str:
        name = self.name()
        self.constants.append(onnx.numpy_helper.from_array(array, name))
        return name

    def ints(self, *numbers: int) -> str:
        return self.constant(np.array(numbers, np.int64))

    def floats(self, shape: list[int]) -> str:
        return self.constant(
            np.array([self.random.uniform(-2, 2) for _ in range(int(np.prod(shape)))], np.float32).reshape(
                shape
            )
        )

    def pick(self) -> tuple[str, tuple[int, ...]]:
        return self.random.choice(self.values[-6:])

    def partner(self, axes: tuple[int, ...]) -> str:
        """A tensor with these axes, perhaps transposed."""
        name, others = self.pick()
        return (
            name
            if others == axes
            else self.node("Transpose", name, perm=[others.index(axis) for axis in axes])[0]
        )

    def transpose(self) -> None:
        name, axes = self.pick()
        perm = self.random.choice(self.perms)
        self.add(self.node("Transpose", name, perm=list(perm))[0], tuple(axes[place] for place in perm))

    def add(self, name: str, axes: tuple[int, ...]) -> None:
        self.values.append((name, axes))

    def shape(self, axes: tuple[int, ...]) -> list[int]:
        return [self.sizes[axis] for axis in axes]


def _unary(g: Graph) -> None:
    x, axes = g.pick()
    g.add(g.node(g.random.choice(["Relu", "Neg", "Abs", "Floor", "Sqrt"]), x)[0], axes)


def _binary(g: Graph) -> None:
    x, axes = g.pick()
    pair = [x, g.partner(axes)]
    g.random.shuffle(pair)
    g.add(g.node(g.random.choice(["Add", "Sub", "Mul", "Max" if g.opset >= 8 else "Add"]), *pair)[0], axes)


def _broadcast(g: Graph) -> None:
    x, axes = g.pick()
    lowest = g.random.randrange(len(axes))
    shape = [size if g.random.random() < 0.6 else 1 for size in g.shape(axes)[lowest:]]
    g.add(g.node("Add", x, g.floats(shape))[0], axes)


def _broadcast_input(g: Graph) -> None:
    """The other operand is computed, and has the last axes only."""
    x, axes = g.pick()
    other, axes_of_other = g.pick()
    if axes_of_other[-1] == axes[-1]:
        kept = list(range(len(axes) - 1))
        vector = (
            g.node("ReduceMax", other, axes=kept, keepdims=0)[0]
            if g.opset < 18
            else g.node("ReduceMax", other, g.ints(*kept), keepdims=0)[0]
        )
        g.add(g.node("Mul", x, vector)[0], axes)


def _where(g: Graph) -> None:
    if g.opset < 9:
        return
    x, axes = g.pick()
    y = g.partner(axes)
    g.add(g.node("Where", g.node("Less", x, y)[0], x, g.partner(axes))[0], axes)


def _slice_and_concat(g: Graph) -> None:
    """Cut along an axis, and join the parts in another order."""
    x, axes = g.pick()
    place = g.random.randrange(len(axes))
    size = g.sizes[axes[place]]
    if size < 2:
        return
    cut = g.random.randrange(1, size)
    if g.opset >= 10:
        a = g.node("Slice", x, g.ints(0), g.ints(cut), g.ints(place))[0]
        b = g.node(
            "Slice", x, g.ints(size - 1), g.ints(cut - 1 - size), g.ints(place - len(axes)), g.ints(-1)
        )[0]
    else:
        a = g.node("Slice", x, starts=[0], ends=[cut], axes=[place])[0]
        b = g.node("Slice", x, starts=[cut], ends=[size], axes=[place])[0]
    g.add(
        g.node(
            "Concat",
            b,
            g.node("Relu", a)[0],
            axis=place - g.random.choice([0, len(axes)]) if g.opset >= 11 else place,
        )[0],
        axes,
    )


def _split(g: Graph) -> None:
    x, axes = g.pick()
    place = g.random.randrange(len(axes))
    size = g.sizes[axes[place]]
    if size < 2:
        return
    if g.opset < 13:
        parts = g.node("Split", x, outputs=2, axis=place, split=[1, size - 1])
    else:
        parts = g.node("Split", x, g.ints(1, size - 1), outputs=2, axis=place)
    g.add(g.node("Concat", parts[1], parts[0], axis=place)[0], axes)


def _pad(g: Graph) -> None:
    """Pad and crop again."""
    x, axes = g.pick()
    before = [g.random.randrange(2) for _ in axes]
    pads = [*before, *(g.random.randrange(2) for _ in axes)]
    back = [-number for number in pads]
    if g.opset < 11:
        padded = g.node("Pad", x, pads=pads, value=-1.5)[0]
        g.add(g.node("Pad", g.node("Neg", padded)[0], pads=back)[0], axes)
    else:
        padded = g.node("Pad", x, g.ints(*pads), g.constant(np.array(-1.5, np.float32)))[0]
        g.add(g.node("Pad", g.node("Neg", padded)[0], g.ints(*back))[0], axes)


def _reduce(g: Graph) -> None:
    x, axes = g.pick()
    places = sorted(g.random.sample(range(len(axes)), g.random.randrange(1, len(axes))))
    kept = g.random.randrange(2)
    op = g.random.choice(["ReduceMax", "ReduceMin"])
    y = (
        g.node(op, x, axes=places, keepdims=kept)[0]
        if g.opset < 18
        else g.node(op, x, g.ints(*places), keepdims=kept)[0]
    )
    if not kept:
        g.others.append(y)
        y = (
            g.node("Unsqueeze", y, axes=places)[0]
            if g.opset < 13
            else g.node("Unsqueeze", y, g.ints(*places))[0]
        )
    g.add(g.node("Add", x, y)[0], axes)


def _arg(g: Graph) -> None:
    x, axes = g.pick()
    kept = g.random.randrange(2)
    g.others.append(g.node("ArgMax", x, axis=g.random.randrange(len(axes)), keepdims=kept)[0])


def _cumsum(g: Graph) -> None:
    if g.opset >= 11:
        x, axes = g.pick()
        place = g.random.randrange(-len(axes), len(axes))
        g.add(g.node("CumSum", x, g.constant(np.array(place, np.int64)))[0], axes)


def _tile_and_slice(g: Graph) -> None:
    x, axes = g.pick()
    repeats = [g.random.randrange(1, 3) for _ in axes]
    tiled = g.node("Tile", x, g.ints(*repeats))[0]
    if g.opset >= 10:
        back = g.node("Slice", tiled, g.ints(*(0 for _ in axes)), g.ints(*g.shape(axes)))[0]
        g.add(back, axes)
    else:
        g.others.append(tiled)


def _expand(g: Graph) -> None:
    if g.opset >= 8:
        x, axes = g.pick()
        g.add(g.node("Expand", x, g.ints(*g.shape(axes)))[0], axes)


def _gather(g: Graph) -> None:
    x, axes = g.pick()
    place = g.random.randrange(len(axes))
    size = g.sizes[axes[place]]
    if size:
        indices = [g.random.randrange(size) for _ in range(size)]
        g.add(g.node("Gather", x, g.ints(*indices), axis=place)[0], axes)
        g.others.append(g.node("Gather", x, g.constant(np.array(indices[0], np.int64)), axis=place)[0])


def _topk(g: Graph) -> None:
    x, axes = g.pick()
    place = g.random.randrange(len(axes))
    size = g.sizes[axes[place]]
    if size and g.opset >= 11:
        found, where = g.node("TopK", g.node("Abs", x)[0], g.ints(size), axis=place, outputs=2)
        g.add(found, axes)
        g.others.append(where)


def _resize(g: Graph) -> None:
    x, axes = g.pick()
    scales = np.array([g.random.choice([1, 2]) for _ in axes], np.float32)
    if g.opset >= 13:
        g.others.append(g.node("Resize", x, "", g.constant(scales), mode="nearest")[0])
    elif g.opset == 9:
        g.others.append(g.node("Upsample", x, g.constant(scales), mode="nearest")[0])
    elif g.opset < 9:
        g.others.append(g.node("Upsample", x, scales=scales.tolist(), mode="nearest")[0])


def _reshape(g: Graph) -> None:
    """Merge two adjacent axes; the result is another output."""
    x, axes = g.pick()
    if len(axes) > 2 and 0 not in g.sizes:
        place = g.random.randrange(len(axes) - 1)
        shape = g.shape(axes)
        merged = [*shape[:place], shape[place] * shape[place + 1], *shape[place + 2 :]]
        y = g.node("Relu", g.node("Reshape", x, g.ints(*merged))[0])[0]
        perm = list(range(len(merged)))
        g.random.shuffle(perm)
        g.others.append(g.node("Neg", g.node("Transpose", y, perm=perm)[0])[0])
        g.add(g.node("Reshape", y, g.ints(*shape))[0], axes)


def _shape(g: Graph) -> None:
    g.others.append(g.node("Shape", g.pick()[0])[0])


def _quantized(g: Graph) -> None:
    if g.opset >= 13:
        x, axes = g.pick()
        scale, zero = g.constant(np.array(0.05, np.float32)), g.constant(np.array(128, np.uint8))
        q = g.node("QuantizeLinear", x, scale, zero)[0]
        if g.random.random() < 0.4:
            perm = g.random.choice(g.perms)
            q, axes = g.node("Transpose", q, perm=list(perm))[0], tuple(axes[place] for place in perm)
        g.add(g.node("DequantizeLinear", q, scale, zero)[0], axes)


def _if(g: Graph) -> None:
    axes = g.pick()[1]
    flag = g.node("Less", g.constant(np.array(g.random.random(), np.float32)), "flag")[0]
    perm = g.random.choice(g.perms)
    branches = [_body(g, f"{g.prefix}b{g.count}{side}", axes, perm=perm) for side in ("then", "else")]
    first, second = g.node("If", flag, then_branch=branches[0], else_branch=branches[1], outputs=2)
    g.add(first, axes)
    g.add(second, tuple(axes[place] for place in perm))


def _loop(g: Graph) -> None:
    if g.opset < 11:
        return
    start, axes = g.pick()
    prefix = f"{g.prefix}l{g.count}"
    body = _body(g, prefix, axes, loop=True)
    outputs = g.node(
        "Loop", g.constant(np.array(g.random.randrange(4), np.int64)), "", start, body=body, outputs=2
    )
    g.add(outputs[0], axes)
    g.others.append(g.node("Transpose", outputs[1], perm=[0, *(1 + place for place in g.perms[0])])[0])


def _body(
    g: Graph, prefix: str, axes: tuple[int, ...], *, loop: bool = False, perm: tuple[int, ...] | None = None
) -> onnx.GraphProto:
    """A branch, whose second output is the first one transposed by ``perm``, or the body of a loop."""
    inner = Graph(g.random, g.sizes, g.opset, prefix, perms=g.perms)
    inner.values = list(g.values)
    info: Callable[..., onnx.ValueInfoProto] = helper.make_tensor_value_info
    inputs = []
    if loop:
        inputs = [
            info(f"{prefix}i", INT64, []),
            info(f"{prefix}c", BOOL, []),
            info(f"{prefix}s", FLOAT, g.shape(axes)),
        ]
        inner.values += [(f"{prefix}s", axes)] * 3
    grow(inner, g.random.randrange(1, 5), _SIMPLE)
    name = inner.node("Neg", inner.partner(axes))[0]
    outputs = [info(name, FLOAT, g.shape(axes))]
    if perm is not None:
        turned = inner.node("Transpose", name, perm=list(perm))[0]
        outputs.append(info(turned, FLOAT, g.shape(tuple(axes[place] for place in perm))))
    if loop:
        go = inner.node("Identity", f"{prefix}c")[0]
        row = inner.node("Relu", inner.partner(axes))[0]
        outputs = [info(go, BOOL, []), *outputs, info(row, FLOAT, g.shape(axes))]
    return helper.make_graph(inner.nodes, f"{prefix}body", inputs, outputs, inner.constants)


_SIMPLE = (
    _unary, _binary, _broadcast, _broadcast_input, _where, _slice_and_concat, _split, _pad, _reduce, _arg,
    _cumsum, _tile_and_slice, _expand, _gather, _topk, _resize, _reshape, _shape, _quantized, Graph.transpose,
)  # fmt: skip
_ALL = (*_SIMPLE, _if, _loop)


def grow(g: Graph, steps: int, kinds: tuple[Callable[[Graph], None], ...] = _ALL) -> None:
    """Add ``steps`` operators, with as many Transposes."""
    for _ in range(steps):
        g.random.choice(kinds)(g)
        if g.random.random() < 0.5:
            g.transpose()


def sizes_of(generator: random.Random) -> list[int]:
    """The dims of the input ``x`` of the model of a seed, from a new generator of this seed."""
    rank = generator.choice([3, 4, 4, 4, 5])
    sizes = [generator.choice([1, 2, 3, 4]) for _ in range(rank)]
    if generator.random() < 0.15:
        sizes[generator.randrange(rank)] = 0
    return sizes


def random_model(seed: int, opset: int) -> onnx.ModelProto:
    """A model with one input ``x`` of rank 3, 4 or 5, and several outputs.

    Dims may be dynamic, 1 or 0.
    """
    generator = random.Random(seed)
    sizes = sizes_of(generator)
    rank = len(sizes)
    g = Graph(generator, sizes, opset)
    first = (0, *range(2, rank), 1)
    g.perms = [first, tuple(first.index(axis) for axis in range(rank))]
    if generator.random() < 0.3:
        other = list(range(rank))
        generator.shuffle(other)
        g.perms.append(tuple(other))
    g.values = [("x", tuple(range(rank)))]
    g.values.append((g.node("Neg", "x")[0], tuple(range(rank))))
    grow(g, generator.randrange(3, 14))
    names = dict.fromkeys([g.values[-1][0], g.pick()[0], *g.others[-3:]])
    names.pop("x", None)
    used = [name for name in names if name]
    # below opset 11, onnx keeps the symbol of a dim that Slice changes, and onnxruntime plans memory accordingly
    dims = [
        f"d{axis}" if generator.random() < 0.4 and opset > 10 else size for axis, size in enumerate(sizes)
    ]
    outputs = [onnx.ValueInfoProto(name=name) for name in used]
    inputs = [
        helper.make_tensor_value_info("x", FLOAT, dims),
        helper.make_tensor_value_info("flag", FLOAT, []),
    ]
    graph = helper.make_graph(g.nodes, f"seed{seed}", inputs, outputs, g.constants)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=8)
    model = onnx.shape_inference.infer_shapes(model)
    del model.graph.value_info[:]
    return model
