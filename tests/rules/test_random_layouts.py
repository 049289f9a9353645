"""The default pipeline preserves random graphs of layout operators, and adds no nodes."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
from hypothesis import given
from hypothesis import strategies as st
from onnx import TensorProto, helper, numpy_helper
from onnx.reference import ReferenceEvaluator

from graphopt.ort import session
from tests.rules.rule_cases import optimize

OPSETS = (9, 11, 13, 15, 18, 21)


class Grower:
    """Adds operators to a graph, each of which runs for the sizes at hand; random choices come from ``draw``.

    The graph is built for one binding of the input's symbols. It may run for others too.
    """

    def __init__(self, draw: Any, opset: int) -> None:
        self.draw = draw
        self.opset = opset
        self.nodes: list[onnx.NodeProto] = []
        self.weights: list[onnx.TensorProto] = []
        self.shapes: dict[str, tuple[int, ...]] = {}
        self.integers: dict[str, int] = {}  # name and length of int64 vectors
        self.undo: dict[str, tuple[str, tuple[int, ...]]] = {}  # the inverse of the last view of a value

    def pick(self, *choices: Any) -> Any:
        return self.draw(st.sampled_from(choices))

    def number(self, low: int, high: int) -> int:
        return int(self.draw(st.integers(low, high)))

    def op(self, op_type: str, *inputs: str, **attributes: Any) -> str:
        name = f"v{len(self.nodes)}"
        self.nodes.append(helper.make_node(op_type, inputs, [name], **attributes))
        return name

    def constant(self, *numbers: int | float, dtype: Any = np.int64, scalar: bool = False) -> str:
        name = f"c{len(self.weights)}"
        array = np.array(numbers[0] if scalar else numbers, dtype)
        self.weights.append(numpy_helper.from_array(array, name))
        return name

    def with_ints(self, op_type: str, since: int, x: str, name: str, numbers: list[int], **more: Any) -> str:
        """An operator whose integers moved from an attribute to an input at opset ``since``."""
        if self.opset < since:
            return self.op(op_type, x, **{name: numbers}, **more)
        return self.op(op_type, x, self.constant(*numbers), **more)

    def shape_vector(self, x: str, wanted: tuple[int, ...]) -> str:
        """``wanted`` as a constant, or computed from the shape of ``x`` where its dims occur in it."""
        if self.pick(True, False):
            return self.constant(*wanted)
        source = self.shapes[x]
        parts = []
        whole = self.op("Shape", x)
        for size in wanted:
            places = [axis for axis, dim in enumerate(source) if dim == size]
            if not places or self.pick(True, False, False):
                parts.append(self.constant(size))
                continue
            axis = self.pick(*places)
            match self.pick("gather", "gather1", "slice"):
                case "gather":
                    scalar = self.op("Gather", whole, self.constant(axis, scalar=True))
                    parts.append(self.with_ints("Unsqueeze", 13, scalar, "axes", [0]))
                case "gather1":
                    parts.append(self.op("Gather", whole, self.constant(axis)))
                case "slice":
                    parts.append(self.slice(whole, [(0, axis, axis + 1, 1)]))
        return parts[0] if len(parts) == 1 else self.op("Concat", *parts, axis=0)

    def slice(self, x: str, ranges: list[tuple[int, int, int, int]]) -> str:
        axes, starts, ends, steps = (list(numbers) for numbers in zip(*ranges, strict=True))
        if self.opset < 10:
            return self.op("Slice", x, axes=axes, starts=starts, ends=ends)
        extra = [self.constant(*steps)] if any(step != 1 for step in steps) or self.pick(True, False) else []
        return self.op("Slice", x, self.constant(*starts), self.constant(*ends), self.constant(*axes), *extra)

    # One step each ------------------------------------------------------------------------

    def grow(self) -> None:
        x = self.pick(*self.shapes)
        kinds = [name[4:] for name in dir(self) if name.startswith("add_")]
        made = getattr(self, "add_" + self.pick(*kinds))(x, self.shapes[x])
        for name, shape in made or []:
            if 0 < int(np.prod(shape)) <= 4096 and len(shape) <= 6:  # a size of 0 is tried by binding
                self.shapes[name] = shape

    def add_transpose(self, x: str, shape: tuple[int, ...]) -> Any:
        if not shape:
            return None
        perm = self.draw(st.permutations(range(len(shape))))
        name = self.op("Transpose", x, perm=perm)
        self.undo[name] = "Transpose", tuple(perm.index(axis) for axis in range(len(perm)))
        return [(name, tuple(shape[axis] for axis in perm))]

    def add_undo(self, x: str, shape: tuple[int, ...]) -> Any:
        """The inverse of a Transpose or Reshape above, perhaps with elementwise operators between."""
        names = [name for name in self.shapes if name in self.undo]
        if not names:
            return None
        x = self.pick(*names)
        kind, numbers = self.undo[x]
        if kind == "Transpose":
            return [(self.op(kind, x, perm=numbers), tuple(self.shapes[x][axis] for axis in numbers))]
        return [(self.op(kind, x, self.constant(*numbers)), numbers)]

    def add_reshape(self, x: str, shape: tuple[int, ...]) -> Any:
        wanted = list(shape)
        for _ in range(self.number(1, 3)):
            match self.pick("merge", "cut", "one", "drop"):
                case "merge" if len(wanted) > 1:
                    at = self.number(0, len(wanted) - 2)
                    wanted[at : at + 2] = [wanted[at] * wanted[at + 1]]
                case "cut" if wanted and any(dim % 2 == 0 and dim for dim in wanted):
                    at = self.pick(*[i for i, dim in enumerate(wanted) if dim % 2 == 0 and dim])
                    wanted[at : at + 1] = self.pick([2, wanted[at] // 2], [wanted[at] // 2, 2])
                case "one":
                    wanted.insert(self.number(0, len(wanted)), 1)
                case "drop" if 1 in wanted:
                    wanted.remove(1)
        told = list(wanted)
        if not wanted:
            return [(self.op("Reshape", x, self.constant()), ())]
        if self.pick(True, False):
            for axis, (a, b) in enumerate(zip(wanted, shape, strict=False)):
                if a == b and self.pick(True, False):
                    told[axis] = 0
            if self.pick(True, False):
                told[self.number(0, len(told) - 1)] = -1
            name = self.op("Reshape", x, self.constant(*told))
            self.undo[name] = "Reshape", shape
            return [(name, tuple(wanted))]
        return [(self.op("Reshape", x, self.shape_vector(x, tuple(wanted))), tuple(wanted))]

    def add_flatten(self, x: str, shape: tuple[int, ...]) -> Any:
        axis = self.number(0, len(shape))
        sides = int(np.prod(shape[:axis], dtype=int)), int(np.prod(shape[axis:], dtype=int))
        return [(self.op("Flatten", x, axis=axis), sides)]

    def add_squeeze(self, x: str, shape: tuple[int, ...]) -> Any:
        ones = [axis for axis, dim in enumerate(shape) if dim == 1]
        if not ones:
            return None
        axes = sorted({self.pick(*ones), self.pick(*ones)})
        kept = tuple(dim for axis, dim in enumerate(shape) if axis not in axes)
        told = [axis - len(shape) for axis in axes] if self.pick(True, False) and self.opset > 10 else axes
        return [(self.with_ints("Squeeze", 13, x, "axes", told), kept)]

    def add_unsqueeze(self, x: str, shape: tuple[int, ...]) -> Any:
        axes = sorted({self.number(0, len(shape)), self.number(0, len(shape) + 1)})
        axes = [axis for axis in axes if axis < len(shape) + len(axes)]
        result = np.expand_dims(np.empty(shape), tuple(axes)).shape
        return [(self.with_ints("Unsqueeze", 13, x, "axes", axes), result)]

    def add_slice(self, x: str, shape: tuple[int, ...]) -> Any:
        if not shape:
            return None
        ranges, result = [], list(shape)
        for axis in sorted({self.number(0, len(shape) - 1), self.number(0, len(shape) - 1)}):
            size = result[axis]
            step = self.pick(1, 1, 1, 2, -1) if self.opset >= 10 else 1
            start, end = (
                self.number(-size, size),
                self.pick(size, -1, 2**31 - 1, 2**63 - 1, self.number(0, 4)),
            )
            if step < 0:
                start, end = self.pick(-1, size - 1), self.pick(-(2**63) + 1, -size - 1)
            ranges.append((axis, start, end, step))
            result[axis] = len(range(size)[start:end:step])
        return [(self.slice(x, ranges), tuple(result))]

    def add_concat(self, x: str, shape: tuple[int, ...]) -> Any:
        if not shape:
            return None
        axis = self.number(0, len(shape) - 1)
        fits = [
            name
            for name, other in self.shapes.items()
            if len(other) == len(shape)
            and all(a == b for i, (a, b) in enumerate(zip(shape, other, strict=True)) if i != axis)
        ]
        parts = [x, *(self.pick(*fits) for _ in range(self.number(0, 2)))]
        sizes = sum(self.shapes[part][axis] for part in parts)
        told = axis - len(shape) if self.opset > 10 and self.pick(True, False) else axis
        return [(self.op("Concat", *parts, axis=told), (*shape[:axis], sizes, *shape[axis + 1 :]))]

    def add_split(self, x: str, shape: tuple[int, ...]) -> Any:
        axes = [axis for axis, dim in enumerate(shape) if dim > 1]
        if not axes:
            return None
        axis = self.pick(*axes)
        cut = self.number(1, shape[axis] - 1)
        sizes = [cut, shape[axis] - cut]
        name = self.with_ints("Split", 13, x, "split", sizes, axis=axis)
        self.nodes[-1].output.append(f"{name}b")
        parts = [(*shape[:axis], size, *shape[axis + 1 :]) for size in sizes]
        return [(name, parts[0]), (f"{name}b", parts[1])]

    def add_pad(self, x: str, shape: tuple[int, ...]) -> Any:
        amounts = [self.pick(0, 0, 1, 2) for _ in range(2 * len(shape))]
        if not shape:
            return None
        if self.opset < 11:
            name = self.op("Pad", x, pads=amounts, value=self.pick(0.0, 1.5))
        else:
            extra = (
                [self.constant(self.pick(0.0, 1.5), dtype=np.float32, scalar=True)]
                if self.pick(True, False)
                else []
            )
            name = self.op("Pad", x, self.constant(*amounts), *extra)
        return [
            (name, tuple(d + a + b for d, a, b in zip(shape, amounts, amounts[len(shape) :], strict=False)))
        ]

    def add_expand(self, x: str, shape: tuple[int, ...]) -> Any:
        wanted = [self.pick(1, 2, 3) if dim == 1 else dim for dim in shape]
        wanted = [self.pick(1, 2)] * self.number(0, 1) + wanted
        if not wanted:
            return None
        told = [1 if self.pick(True, False) and i >= len(wanted) - len(shape) and dim == shape[i - len(wanted)] else dim
                for i, dim in enumerate(wanted)]  # fmt: skip
        return [(self.op("Expand", x, self.shape_vector(x, tuple(told))), tuple(wanted))]

    def add_tile(self, x: str, shape: tuple[int, ...]) -> Any:
        repeats = [self.pick(1, 1, 2) for _ in shape]
        if not repeats:
            return None
        return [
            (
                self.op("Tile", x, self.constant(*repeats)),
                tuple(a * b for a, b in zip(shape, repeats, strict=True)),
            )
        ]

    def add_gather(self, x: str, shape: tuple[int, ...]) -> Any:
        axes = [axis for axis, dim in enumerate(shape) if dim]
        if not axes:
            return None
        axis = self.pick(*axes)
        low = -shape[axis] if self.opset > 10 else 0
        picks = [self.number(low, shape[axis] - 1) for _ in range(self.number(1, 2))]
        scalar = len(picks) == 1 and self.pick(True, False)
        index = self.constant(*picks, scalar=scalar)
        result = (*shape[:axis], *([] if scalar else [len(picks)]), *shape[axis + 1 :])
        return [(self.op("Gather", x, index, axis=axis), result)]

    def add_reduce(self, x: str, shape: tuple[int, ...]) -> Any:
        axes = [axis for axis, dim in enumerate(shape) if dim]
        if not axes:
            return None
        axes = sorted({self.pick(*axes), self.pick(*axes)})
        keep = self.pick(0, 1)
        kind, since = self.pick(("ReduceSum", 13), ("ReduceMax", 18), ("ReduceMean", 18))
        result = tuple(
            1 if axis in axes else dim for axis, dim in enumerate(shape) if keep or axis not in axes
        )
        return [(self.with_ints(kind, since, x, "axes", axes, keepdims=keep), result)]

    def add_unary(self, x: str, shape: tuple[int, ...]) -> Any:
        if self.pick(True, False):
            return [(self.op("Cast", self.op("Cast", x, to=TensorProto.DOUBLE), to=TensorProto.FLOAT), shape)]
        name = self.op(self.pick("Relu", "Neg", "Abs", "Identity", "Sigmoid"), x)
        if x in self.undo:
            self.undo[name] = self.undo[x]
        return [(name, shape)]

    def add_binary(self, x: str, shape: tuple[int, ...]) -> Any:
        found = {}
        for name, other in self.shapes.items():
            try:
                found[name] = np.broadcast_shapes(shape, other)
            except ValueError:
                continue
        y = self.pick(*found)
        name = self.op(self.pick("Add", "Mul", "Sub", "Max"), *self.pick((x, y), (y, x)))
        if x in self.undo and found[y] == shape:
            self.undo[name] = self.undo[x]
        return [(name, found[y])]

    def add_matmul(self, x: str, shape: tuple[int, ...]) -> Any:
        if not shape or not shape[-1]:
            return None
        name = f"c{len(self.weights)}"
        weight = np.linspace(-1, 1, shape[-1] * 2, dtype=np.float32).reshape(shape[-1], 2)
        self.weights.append(numpy_helper.from_array(weight, name))
        return [(self.op("MatMul", x, name), (*shape[:-1], 2))]

    def add_integers(self, x: str, shape: tuple[int, ...]) -> Any:
        """A vector of dims, cut and joined; it becomes an output."""
        if shape:
            self.integers[self.shape_vector(x, tuple(self.draw(st.permutations(shape))))] = len(shape)

    def model(self, inputs: list[onnx.ValueInfoProto]) -> onnx.ModelProto:
        """The model: the grown nodes as a graph, as both branches of an If, or as a function with a call."""
        made = {name for node in self.nodes for name in node.output}
        ranks = {name: len(self.shapes[name]) for name in list(self.shapes)[-3:] if name in made}
        outputs = [
            helper.make_tensor_value_info(n, TensorProto.FLOAT, [None] * rank) for n, rank in ranks.items()
        ]
        outputs += [
            helper.make_tensor_value_info(n, TensorProto.INT64, [None]) for n in self.integers if n in made
        ]
        if not outputs:
            outputs = [helper.make_tensor_value_info(self.op("Neg", inputs[0].name), TensorProto.FLOAT, None)]
        imports = [helper.make_opsetid("", self.opset), helper.make_opsetid("f", 1)]
        names = [output.name for output in outputs]
        functions = []
        match self.pick("graph", "graph", "if", "function"):
            case "graph":
                graph = helper.make_graph(self.nodes, "g", inputs, outputs, self.weights)
            case "if":
                branches = {
                    f"{kind}_branch": helper.make_graph(*_renamed(kind, self.nodes, outputs, self.weights))
                    for kind in ("then", "else")
                }
                condition = helper.make_tensor_value_info("condition", TensorProto.BOOL, [])
                choice = helper.make_node("If", ["condition"], names, **branches)
                graph = helper.make_graph([choice], "g", [*inputs, condition], outputs)
            case _:
                constants = [helper.make_node("Constant", [], [t.name], value=t) for t in self.weights]
                arguments = [value.name for value in inputs]
                body = [*constants, *self.nodes]
                functions.append(helper.make_function("f", "grown", arguments, names, body, imports[:1]))
                call = helper.make_node("grown", arguments, names, domain="f")
                graph = helper.make_graph([call], "g", inputs, outputs)
        return helper.make_model(graph, opset_imports=imports, ir_version=8, functions=functions)


def _renamed(prefix: str, nodes: list[Any], outputs: list[Any], weights: list[Any]) -> tuple[Any, ...]:
    """Arguments of make_graph for a body with names of its own."""
    own = {name for node in nodes for name in node.output} | {tensor.name for tensor in weights}

    def new(name: str) -> str:
        return f"{prefix}_{name}" if name in own else name

    body = []
    for node in nodes:
        copy = onnx.NodeProto()
        copy.CopyFrom(node)
        copy.input[:], copy.output[:] = map(new, node.input), map(new, node.output)
        body.append(copy)
    results = [
        helper.make_tensor_value_info(new(o.name), o.type.tensor_type.elem_type, None) for o in outputs
    ]
    tensors = [numpy_helper.from_array(numpy_helper.to_array(tensor), new(tensor.name)) for tensor in weights]
    return body, prefix, [], results, tensors


@st.composite
def cases(draw: Any) -> tuple[onnx.ModelProto, list[dict[str, tuple[int, ...]]]]:
    """A model, the input shapes for which it was built, and other possible shapes."""
    grower = Grower(draw, draw(st.sampled_from(OPSETS)))
    inputs, builtin, others = [], {}, {}
    for name in ("x", "z")[: draw(st.integers(1, 2))]:
        shape = draw(st.lists(st.sampled_from([1, 2, 3, 4]), min_size=1, max_size=4))
        symbols = [f"{name}{axis}" if draw(st.booleans()) else size for axis, size in enumerate(shape)]
        inputs.append(helper.make_tensor_value_info(name, TensorProto.FLOAT, symbols))
        grower.shapes[name] = builtin[name] = tuple(shape)
        others[name] = tuple(draw(st.integers(1, 5)) if isinstance(s, str) else s for s in symbols)
    for _ in range(draw(st.integers(2, 12))):
        grower.grow()
    empty = {
        name: tuple(0 if s != t else s for s, t in zip(shape, others[name], strict=True))
        for name, shape in builtin.items()
    }
    return grower.model(inputs), [builtin, others, empty]


def count_nodes(model: onnx.ModelProto) -> int:
    """Nodes of the graph, of bodies and functions; constants are not counted."""
    graphs = [model.graph.node, *(function.node for function in model.functions)]
    graphs += [attribute.g.node for node in model.graph.node for attribute in node.attribute]
    return sum(node.op_type != "Constant" for nodes in graphs for node in nodes)


def is_legal(model: onnx.ModelProto, feeds: dict[str, np.ndarray]) -> bool:
    """Whether both runtimes run ``model``; only onnxruntime concatenates empty tensors of incompatible shapes."""
    try:
        ReferenceEvaluator(model).run(None, feeds)
        run(model, feeds)
    except Exception:  # each raises errors of many kinds
        return False
    return True


def run(model: onnx.ModelProto, feeds: dict[str, np.ndarray]) -> list[np.ndarray]:
    return session.run(session.create(model.SerializeToString(), optimizations="off", threads=1), feeds)


@given(cases())
def test_random_layouts_are_preserved(case: tuple[onnx.ModelProto, list[dict[str, tuple[int, ...]]]]) -> None:
    check(*case)


def check(before: onnx.ModelProto, shapes: list[dict[str, tuple[int, ...]]]) -> None:
    after = optimize(before)
    assert count_nodes(after) <= count_nodes(before)
    for index, sizes in enumerate(shapes):
        random = np.random.default_rng(0)
        feeds = {name: random.standard_normal(shape).astype(np.float32) for name, shape in sizes.items()}
        if before.graph.input[-1].name == "condition":
            feeds["condition"] = np.array(True)
        if index and not is_legal(before, feeds):
            continue
        expected = run(before, feeds)
        for a, b in zip(expected, run(after, feeds), strict=True):
            assert a.shape == b.shape and a.dtype == b.dtype, (sizes, a.shape, b.shape)
            np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-5)
