"""Builder of random graphs with products, and of their inputs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

Array = np.ndarray
#: A size, the symbol of a size, or None for a size that the generator does not know.
Dim = int | str | None
#: The elements of an input: a function of the generator, the shape, and the number of the case.
Draw = Callable[[np.random.Generator, Sequence[int], int], Array]

FLOAT = np.dtype(np.float32)
#: Number of inputs that each graph runs with. Those from the third on contain special values.
CASES = 5
#: Share of elements that may be at ties.
TIES = 0.01
_FINITE = ("zero", "tiny")
_SPECIAL = (*_FINITE, "nan", "infinite", "large")


@dataclass(frozen=True)
class Tolerance:
    """Differences that are allowed, beside the effect of rounded inputs.

    Attributes:
        precision: relative to the largest magnitude of a result.
        ties: share of elements that may differ by more.
    """

    precision: float = 2.0**-18
    ties: float = 0.0


@dataclass(frozen=True)
class Input:
    """An input of the graph.

    Attributes:
        draw: its elements; by default normally distributed floats, all bytes, or integers from -5 to 5.
        may_be_special: whether its floats are replaced by special values in some cases.
    """

    name: str
    dims: tuple[int | str, ...]
    dtype: np.dtype
    draw: Draw | None = None
    may_be_special: bool = True


@dataclass
class ProductGraph:
    """A graph under construction.

    Attributes:
        body: ``if`` or ``loop`` if the nodes are in a body of such an operator.
        sizes: the sizes of each symbol; case N has number N modulo their count.
        is_finite: whether no input is NaN, infinite or large, because results for these are unspecified.
        precision: tolerance relative to the largest magnitude of a result, beside the effect of rounded inputs.
        tied: values of nodes that round to few numbers or compare. At ties, elements that depend on them differ.
        turn: the number of graphs of the same family with smaller seeds.
    """

    seed: int
    opset: int = 17
    body: str = ""
    nodes: list[onnx.NodeProto] = field(default_factory=list)
    weights: dict[str, Array] = field(default_factory=dict)
    inputs: list[Input] = field(default_factory=list)
    outputs: dict[str, int] = field(default_factory=dict)
    sizes: dict[str, list[int]] = field(default_factory=dict)
    is_finite: bool = False
    precision: float = 2.0**-18
    tied: list[str] = field(default_factory=list)
    turn: int = 0

    def __post_init__(self) -> None:
        self.random = np.random.default_rng(self.seed)

    # Choices

    def chance(self, probability: float) -> bool:
        return bool(self.random.random() < probability)

    def pick(self, *options: Any) -> Any:
        return options[int(self.random.integers(len(options)))]

    def cycle(self, *options: Any) -> Any:
        """One of ``options``, so that consecutive graphs of a family have all of them."""
        return options[self.turn % len(options)]

    def normal(self, *shape: int, scale: float = 1.0) -> Array:
        return (self.random.standard_normal(shape) * scale).astype(np.float32)

    # Values

    def symbol(self, *sizes: int) -> str:
        name = f"D{len(self.sizes)}"
        self.sizes[name] = list(sizes)
        return name

    def input(
        self,
        dims: Sequence[int | str],
        dtype: Any = FLOAT,
        draw: Draw | None = None,
        may_be_special: bool = True,
    ) -> str:
        made = Input(f"x{len(self.inputs)}", tuple(dims), np.dtype(dtype), draw, may_be_special)
        self.inputs.append(made)
        return made.name

    def constant(self, array: Any) -> str:
        name = f"c{len(self.weights)}"
        self.weights[name] = np.asarray(array)
        return name

    def node(self, op: str, inputs: Sequence[str], *, domain: str = "", **attributes: Any) -> str:
        return self.node_with(op, 1, inputs, domain=domain, **attributes)[0]

    def node_with(self, op: str, outputs: int, inputs: Sequence[str], **attributes: Any) -> list[str]:
        """The results of a node with several."""
        inputs = list(inputs)
        while inputs and not inputs[-1]:
            inputs.pop()
        names = [f"v{len(self.nodes)}_{index}" for index in range(outputs)]
        self.nodes.append(helper.make_node(op, inputs, names, **attributes))
        return names

    def weight(self, *shape: int, scale: float = 1.0, may_be_special: bool = True) -> str:
        """A constant, an input, or a value computed from a constant."""
        array = self.normal(*shape, scale=scale)
        kind = self.random.random()
        if kind < 0.65:
            return self.constant(array)
        if kind < 0.8:

            def draw(random: np.random.Generator, shape: Sequence[int], case: int) -> Array:
                return (random.standard_normal(shape) * scale).astype(np.float32)

            return self.input(shape, draw=draw, may_be_special=may_be_special)
        if kind < 0.9:
            return self.node("Identity", [self.constant(array)])
        return self.node("Mul", [self.constant(array), self.input((), may_be_special=may_be_special)])

    def total(self, *dims: int | str) -> int | str:
        """The sum of dims, as a size or a symbol."""
        sizes = [sum(self.size(dim, case) for dim in dims) for case in range(CASES)]
        return sizes[0] if all(isinstance(dim, int) for dim in dims) else self.symbol(*sizes)

    def size(self, dim: int | str, case: int) -> int:
        """The size of a dim in a case."""
        return dim if isinstance(dim, int) else self.sizes[dim][case % len(self.sizes[dim])]

    def tie(self, value: str) -> str:
        """``value``, as the result of a node that rounds to few numbers or compares."""
        self.tied.append(value)
        return value

    def tolerance(self, output: str | None = None) -> Tolerance:
        """The tolerance of an output; by default of all values together."""
        producers = {name: node for node in self.nodes for name in node.output}
        pending, visited = [*self.outputs] if output is None else [output], set()
        while pending:
            name = pending.pop()
            if name in self.tied:
                return Tolerance(self.precision, TIES)
            if name in producers and name not in visited:
                visited.add(name)
                pending += producers[name].input
        return Tolerance(self.precision)

    def output(self, value: str, dtype: int = TensorProto.FLOAT) -> None:
        self.outputs[value] = dtype

    # The model and its inputs

    def model(self) -> onnx.ModelProto:
        inputs = [
            helper.make_tensor_value_info(
                each.name, helper.np_dtype_to_tensor_dtype(each.dtype), list(each.dims)
            )
            for each in self.inputs
        ]
        outputs = [helper.make_tensor_value_info(name, dtype, None) for name, dtype in self.outputs.items()]
        weights = [numpy_helper.from_array(array, name) for name, array in self.weights.items()]
        if self.body == "if":
            graph = self._in_if(inputs, outputs, weights)
        elif self.body == "loop":
            graph = self._in_loop(inputs, outputs, weights)
        else:
            graph = helper.make_graph(self.nodes, "products", inputs, outputs, weights)
        opsets = [helper.make_opsetid("", self.opset), helper.make_opsetid("com.microsoft", 1)]
        return helper.make_model(graph, opset_imports=opsets, ir_version=10)

    def _in_if(self, inputs: list[Any], outputs: list[Any], weights: list[Any]) -> onnx.GraphProto:
        taken = helper.make_graph(self.nodes, "taken", [], outputs, weights)
        empty, other = [], []
        for value in outputs:
            nothing = np.zeros(1, helper.tensor_dtype_to_np_dtype(value.type.tensor_type.elem_type))
            name = f"{value.name}_else"
            empty.append(helper.make_node("Constant", [], [name], value=numpy_helper.from_array(nothing)))
            other.append(helper.make_tensor_value_info(name, value.type.tensor_type.elem_type, None))
        names = [f"{value.name}_if" for value in outputs]
        node = helper.make_node(
            "If", ["yes"], names, then_branch=taken, else_branch=helper.make_graph(empty, "else", [], other)
        )
        # a variable condition, so that no pass removes the If
        inputs = [*inputs, helper.make_tensor_value_info("yes", TensorProto.BOOL, [])]
        return helper.make_graph([node], "products", inputs, self._renamed(outputs, names))

    def _in_loop(self, inputs: list[Any], outputs: list[Any], weights: list[Any]) -> onnx.GraphProto:
        """Two iterations, whose results are stacked."""
        condition = helper.make_tensor_value_info("go", TensorProto.BOOL, [])
        step = helper.make_tensor_value_info("step", TensorProto.INT64, [])
        goes = helper.make_tensor_value_info("goes", TensorProto.BOOL, [])
        nodes = [*self.nodes, helper.make_node("Identity", ["go"], ["goes"])]
        body = helper.make_graph(nodes, "body", [step, condition], [goes, *outputs], weights)
        names = [f"{value.name}_loop" for value in outputs]
        node = helper.make_node("Loop", ["two", "yes"], names, body=body)
        inputs = [*inputs, helper.make_tensor_value_info("yes", TensorProto.BOOL, [])]
        two = numpy_helper.from_array(np.array(2, np.int64), "two")
        return helper.make_graph([node], "products", inputs, self._renamed(outputs, names), [two])

    def _renamed(self, outputs: list[Any], names: list[str]) -> list[Any]:
        return [
            helper.make_tensor_value_info(name, value.type.tensor_type.elem_type, None)
            for name, value in zip(names, outputs, strict=True)
        ]

    def kind(self, case: int) -> str:
        """The values of inputs in a case: ``normal``, or special values of one kind."""
        kinds = _FINITE if self.is_finite else _SPECIAL
        return "normal" if case < 2 else kinds[(self.seed + case) % len(kinds)]

    def feeds(self, case: int) -> dict[str, Array]:
        """The inputs of case ``case``, which is less than :data:`CASES`."""
        random = np.random.default_rng([self.seed, case])
        found = {}
        for each in self.inputs:
            sizes = [self.size(dim, case) for dim in each.dims]
            array = _draw(each, random, sizes, case)
            if each.dtype == FLOAT and each.may_be_special and each.draw is None:
                _insert_special(array, self.kind(case), random)
            found[each.name] = array
        if self.body:
            found["yes"] = np.array(True)
        return found


def _draw(each: Input, random: np.random.Generator, shape: Sequence[int], case: int) -> Array:
    if each.draw is not None:
        return np.asarray(each.draw(random, shape, case), dtype=each.dtype)
    if each.dtype == FLOAT:
        return np.asarray(random.standard_normal(shape), dtype=np.float32)
    limits = np.iinfo(each.dtype)
    low, high = (limits.min, limits.max) if each.dtype.itemsize == 1 else (-5, 5)
    return np.asarray(random.integers(low, high + 1, shape), dtype=each.dtype)


def _insert_special(array: Array, kind: str, random: np.random.Generator) -> None:
    if not array.size:
        return
    places = random.integers(array.size, size=max(1, array.size // 50))
    if kind == "nan":
        array.flat[places] = np.nan
    elif kind == "infinite":
        array.flat[places] = random.choice([np.inf, -np.inf], len(places))
    elif kind == "zero":
        array[...] = random.choice(np.array([0.0, -0.0], np.float32), array.shape)
    elif kind == "tiny":
        array *= np.float32(1e-40)
    elif kind == "large":
        array *= np.float32(1e18)
