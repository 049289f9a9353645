"""Grows a graph node by node, and runs each node when it is added, so that the graph runs.

Every value is known by its contents at two sets of sizes: those at which the model's symbols
are small primes, and larger ones. A dim that is the same at both is static. The sizes are those
that the verifier tries first, so what runs here will be judged there.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from random import Random
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from graphopt.errors import GraphoptError
from graphopt.ort import session

Array = np.ndarray
#: Contents of a value at each set of sizes: tensors, or lists of tensors for sequences.
Contents = list[Any]
Test = Callable[[Array], bool]

#: Sizes of the symbols: N is the first axis of inputs, the others follow in the order of use.
SYMBOLS = {"N": (2, 3), "H": (3, 16), "W": (5, 24)}
#: Values larger than this are not worth the time.
_ELEMENTS = 1 << 15
_RANK = 6

FLOATS = (np.float32, np.float64, np.float16)
INTS = (np.int64, np.int32)
SMALL_INTS = (np.uint8, np.int8)


def is_float(x: Array) -> bool:
    return x.dtype.kind == "f"


def is_number(x: Array) -> bool:
    return x.dtype.kind in "fi"


def is_bool(x: Array) -> bool:
    return x.dtype.kind == "b"


def has_axes(x: Array) -> bool:
    return x.ndim > 0


@dataclass(eq=False)
class Scope:
    """The contents of a growing graph, body or function.

    Attributes:
        nodes: in order.
        random: values that differ from run to run.
        doubtful: values that may be NaN although no input is.
        values: the visible values, in order of appearance; values of enclosing graphs are first.
        constants: those among the values that are constants or initializers.
        initializers: own ones; functions have none.
        inputs: own ones, declared; only the main graph may get more.
    """

    nodes: list[onnx.NodeProto] = field(default_factory=list)
    values: dict[str, Contents] = field(default_factory=dict)
    constants: dict[str, TensorProto] = field(default_factory=dict)
    random: set[str] = field(default_factory=set)
    doubtful: set[str] = field(default_factory=set)
    initializers: list[TensorProto] = field(default_factory=list)
    inputs: list[onnx.ValueInfoProto] = field(default_factory=list)
    kind: str = "graph"  # graph | body | function


class Grower:
    """Adds nodes to a graph and to the bodies in it.

    Args:
        random: the generator of all choices.
        opset: the version of ai.onnx.
        ir_version: below 4 every initializer is an input, and none can be overridden.
    """

    def __init__(self, random: Random, opset: int, ir_version: int) -> None:
        self.random = random
        self.opset = opset
        self.ir_version = ir_version
        self.root = Scope()
        self.scopes = [self.root]  # the current graph is last, after the enclosing ones
        self.functions: list[onnx.FunctionProto] = []
        self.places = 2  # sets of sizes at which all nodes so far run
        self.favourites: tuple[str, ...] = ()  # operators that are preferred
        self._made = 0

    @property
    def scope(self) -> Scope:
        """The graph at work."""
        return self.scopes[-1]

    @property
    def in_function(self) -> bool:
        return any(scope.kind == "function" for scope in self.scopes)

    # Choosing ---------------------------------------------------------------------------------

    def chance(self, percent: int) -> bool:
        return self.random.randrange(100) < percent

    def choose(self, *items: Any) -> Any:
        return items[self.random.randrange(len(items))]

    def number(self, low: int, high: int) -> int:
        return self.random.randint(low, high)

    def some(self, items: Sequence[Any], least: int = 1) -> list[Any]:
        """A few of ``items``, in order."""
        count = self.number(least, min(len(items), 3)) if len(items) > least else len(items)
        places = sorted(self.random.sample(range(len(items)), count))
        return [items[place] for place in places]

    def pick(self, *tests: Test) -> str | None:
        """A tensor that satisfies all ``tests``, preferably a new one."""
        fits = [
            name
            for name, contents in self.scope.values.items()
            if isinstance(contents[0], np.ndarray) and all(test(contents[0]) for test in tests)
        ]
        if not fits:
            return None
        return fits[-1 - self.random.randrange(min(len(fits), self.choose(1, 3, 6, len(fits))))]

    def operand(self, given: Mapping[int, str], index: int, *tests: Test) -> str | None:
        """The given operand if it satisfies ``tests``; otherwise another tensor that does."""
        name = given.get(index)
        if name is None:
            return self.pick(*tests)
        held = self.scope.values[name][0]
        return name if isinstance(held, np.ndarray) and all(test(held) for test in tests) else None

    def pick_sequence(self) -> str | None:
        fits = [name for name, contents in self.scope.values.items() if isinstance(contents[0], list)]
        return fits[self.random.randrange(len(fits))] if fits else None

    # Knowing ----------------------------------------------------------------------------------

    def array(self, name: str) -> Array:
        """The contents of the tensor at the small sizes."""
        return self.scope.values[name][0]

    def dtype(self, name: str) -> np.dtype[Any]:
        return self.array(name).dtype

    def shape(self, name: str) -> tuple[int, ...]:
        return self.array(name).shape

    def rank(self, name: str) -> int:
        return self.array(name).ndim

    def sizes(self, name: str) -> list[tuple[int, int]]:
        """Each dim at both sets of sizes; the same twice where it is static."""
        contents = self.scope.values[name]
        first, last = contents[0].shape, contents[self.places - 1].shape
        return list(zip(first, last, strict=False)) if len(first) == len(last) else [(-1, -2)]

    def static(self, name: str) -> list[int | None]:
        """The dims that are the same at all sizes."""
        return [a if a == b else None for a, b in self.sizes(name)]

    def is_constant(self, name: str) -> bool:
        return name in self.scope.constants

    # Making -----------------------------------------------------------------------------------

    def name(self, stem: str = "v") -> str:
        self._made += 1
        return f"{stem}{self._made}"

    def op(
        self, op_type: str, *inputs: str | None, outputs: int = 1, domain: str = "", **attributes: Any
    ) -> Any:
        """Add a node; its output (or outputs), or ``None`` if it does not run."""
        attributes = {key: value for key, value in attributes.items() if value is not None and value != []}
        given = [name or "" for name in inputs]
        while given and not given[-1]:
            given.pop()
        node = helper.make_node(
            op_type, given, [self.name() for _ in range(outputs)], self.name("n"), domain=domain, **attributes
        )
        return self.add(node)

    def add(self, node: onnx.NodeProto) -> Any:
        """Add ``node`` if it runs."""
        random = any(name in self.scope.random for name in reads_of(node))
        if random and not (node.op_type in TELLING or node.op_type == "If"):
            return None
        doubtful = any(name in self.scope.doubtful for name in reads_of(node))
        if doubtful and node.op_type in ("ArgMax", "ArgMin", "TopK"):
            return None  # the maximum of NaNs depends on the kernel
        found = self.run(node)
        if found is None:
            return None
        self.scope.nodes.append(node)
        if doubtful or node.op_type in MAKES_NAN or node.domain:
            self.scope.doubtful.update(node.output)
        if random or draws(node, self):
            self.scope.random.update(node.output)
        names = [name for name in node.output if name]
        for index, name in enumerate(names):
            self.scope.values[name] = [results[index] for results in found]
        return names[0] if len(node.output) == 1 else tuple(names)

    def run(self, node: onnx.NodeProto) -> list[list[Any]] | None:
        """The results of ``node`` at each set of sizes; ``None`` if it does not run, or its results are too large."""
        reads = list(dict.fromkeys(reads_of(node)))
        if any(name not in self.scope.values for name in reads):
            return None
        if not self._is_safe(node):
            return None
        constants = [self.scope.constants[name] for name in reads if name in self.scope.constants]
        fed = [name for name in reads if name not in self.scope.constants]
        inputs = [helper.make_value_info(name, type_of(self.scope.values[name][0])) for name in fed]
        outputs = [onnx.ValueInfoProto(name=name) for name in node.output if name]
        graph = helper.make_graph([node], "g", inputs, outputs, constants)
        data = self.model(graph, max(self.ir_version, 4)).SerializeToString()
        found = []
        try:
            made = session.create(data, optimizations="off", threads=1)
            for place in range(self.places):
                feeds = {name: self.scope.values[name][place] for name in fed}
                results = session.run(made, feeds, seconds=5)
                if not all(_is_handy(result) for result in results):
                    return None
                found.append(results)
        except GraphoptError:
            if not found or not self.chance(10):
                return None
            self.places = len(found)  # from now on only at the small sizes
        return found

    def _is_safe(self, node: onnx.NodeProto) -> bool:
        """Whether no integer is divided by zero, which would crash the process, and concatenated shapes match.

        onnxruntime joins what does not fit where it is empty, and leaves some of the result unwritten.
        A convolution over no channels does not end there.
        """
        if "Conv" in node.op_type:
            read = [x for name in node.input for x in self.scope.values.get(name, [])]
            return all(x.shape[1] for x in read if x.ndim > 1)
        if node.op_type == "ConcatFromSequence":
            joined = self.scope.values[node.input[0]]
            return all(part.ndim == parts[0].ndim and part.size for parts in joined for part in parts)
        if node.op_type not in ("Div", "Mod"):
            return True
        divisors = self.scope.values[node.input[1]]
        return all(x.dtype.kind == "f" or (np.all(x != 0) and np.all(x != -1)) for x in divisors)

    def model(self, graph: onnx.GraphProto, ir_version: int) -> onnx.ModelProto:
        imports = [helper.make_opsetid("", self.opset)]
        if self.functions:
            imports.append(helper.make_opsetid("local", 1))
        return helper.make_model(
            graph, opset_imports=imports, ir_version=ir_version, functions=self.functions
        )

    def constant(self, array: Any, dtype: Any = None) -> str:
        """A constant: an initializer, possibly an existing one, or a Constant node."""
        array = np.asarray(array, dtype)
        if self.chance(30):
            for name in self.scope.constants:
                if same(self.scope.values[name][0], array):
                    return name
        tensor = numpy_helper.from_array(array, self.name("c"))
        self.scope.constants[tensor.name] = tensor
        self.scope.values[tensor.name] = [array] * 2
        if array.dtype.kind == "f" and not np.all(np.abs(array) < 1e4):
            self.scope.doubtful.add(tensor.name)
        if self.in_function or (self.ir_version > 3 and self.chance(25)):
            self.scope.nodes.append(helper.make_node("Constant", [], [tensor.name], value=tensor))
        elif self.scope.kind == "body" and (self.ir_version < 4 or self.chance(50)):
            self._in_root(tensor, array)
        else:
            self.scope.initializers.append(tensor)
        return tensor.name

    def _in_root(self, tensor: TensorProto, array: Array) -> None:
        """An initializer of the main graph that a body captures."""
        self.root.initializers.append(tensor)
        for scope in self.scopes:
            scope.constants[tensor.name] = tensor
            scope.values[tensor.name] = [array] * 2

    def forget(self, name: str) -> None:
        """Exclude a constant from further reads."""
        self.scope.values.pop(name, None)
        self.scope.constants.pop(name, None)

    def overridable(self, array: Array) -> str | None:
        """An initializer that callers may override."""
        if self.ir_version < 4 or self.scope.kind != "graph":
            return None
        tensor = numpy_helper.from_array(np.asarray(array), self.name("o"))
        self.root.initializers.append(tensor)
        self.root.values[tensor.name] = [array] * 2
        self.root.inputs.append(helper.make_tensor_value_info(tensor.name, tensor.data_type, array.shape))
        return tensor.name

    def input(self, dtype: Any, dims: Sequence[int | str]) -> str | None:
        """A new input of the model; ``None`` outside of the main graph."""
        if self.scope.kind != "graph":
            return None
        name = self.name("x")
        data_type = helper.np_dtype_to_tensor_dtype(np.dtype(dtype))
        self.root.inputs.append(helper.make_tensor_value_info(name, data_type, dims))
        shapes = [[SYMBOLS[d][place] if isinstance(d, str) else d for d in dims] for place in range(2)]
        self.root.values[name] = [self.numbers(dtype, shape) for shape in shapes]
        return name

    def dims(self, name: str) -> list[int | str] | None:
        """The dims as an input declares them; ``None`` if one is neither static nor a symbol."""
        symbols = {sizes: symbol for symbol, sizes in SYMBOLS.items()}
        found = [a if a == b else symbols.get((a, b)) for a, b in self.sizes(name)]
        if self.places == 1 or any(dim is None for dim in found):
            return None
        leads = found[:1] == ["N"] or not isinstance((found or [0])[0], str)
        used = [dim.dim_param for value in self.root.inputs for dim in value.type.tensor_type.shape.dim]
        in_order = "W" not in found or "H" in used or "H" in found[: found.index("W")]
        return found if leads and in_order else None  # type: ignore[return-value]

    # Numbers ----------------------------------------------------------------------------------

    def numbers(self, dtype: Any, shape: Sequence[int]) -> Array:
        """Ordinary contents."""
        generator = np.random.default_rng(self.number(0, 999))
        dtype = np.dtype(dtype)
        match dtype.kind:
            case "b":
                return generator.integers(0, 2, shape) > 0
            case "u" | "i":
                low = 0 if dtype.kind == "u" else -4
                high = 250 if dtype == np.uint8 else 9
                return np.asarray(generator.integers(low, high, shape)).astype(dtype)
        return np.asarray(generator.standard_normal(shape)).astype(dtype)

    def special(self, dtype: Any) -> Any:
        """A number that rules care about."""
        dtype = np.dtype(dtype)
        match dtype.kind:
            case "b":
                return self.choose(True, False)
            case "u":
                return self.choose(0, 1, 2, np.iinfo(dtype).max)
            case "i":
                info = np.iinfo(dtype)
                return self.choose(0, 1, -1, 2, 3, 0, 1, -2, info.min, info.max)
        info = np.finfo(np.float16 if dtype == np.float16 else np.float32)  # fused kernels scale in float32
        common = (0.0, 1.0, -1.0, -0.0, 2.0, 0.5, 6.0, 0.0, 1.0, 3.0, 0.1, -0.0)
        return self.choose(*common, info.tiny, info.max, np.nan, np.inf, -np.inf)

    def contents(self, dtype: Any, shape: Sequence[int]) -> Array:
        """Contents for a constant: one special number, ordinary ones, or a mixture."""
        match self.choose("one", "numbers", "numbers", "mixed"):
            case "one":
                return np.full(shape, self.special(dtype), dtype)
            case "mixed":
                array = self.numbers(dtype, shape)
                if array.size:
                    array.reshape(-1)[self.random.randrange(array.size)] = self.special(dtype)
                return array
        return self.numbers(dtype, shape)

    def partner_shape(self, name: str) -> list[int]:
        """A shape that broadcasts with that of ``name``, at all sizes."""
        dims = [1 if dim is None else dim for dim in self.static(name)]
        match self.choose("scalar", "one", "full", "tail", "channel", "ones", "more"):
            case "scalar":
                return []
            case "one":
                return [1] * min(1, len(dims))
            case "full":
                return dims
            case "tail":
                return dims[self.number(0, len(dims)) :]
            case "channel":
                return [*dims[1:2], *[1] * (len(dims) - 2)]
            case "more":
                return [1, *dims] if len(dims) < 4 else dims
        return [dim if self.chance(50) else 1 for dim in dims]

    def partner(self, name: str, constant: int = 50) -> str:
        """Something of the same type that broadcasts with ``name``."""
        array = self.array(name)
        if not self.chance(constant):
            found = self.pick(lambda x: x.dtype == array.dtype and broadcasts(x, array))
            if found is not None and (found != name or self.chance(20)):
                return found
            dims = self.dims(name)
            if dims is not None and self.chance(30):
                made = self.input(array.dtype, dims)
                if made is not None:
                    return made
        contents = self.contents(array.dtype, self.partner_shape(name))
        made = self.overridable(contents) if self.chance(5) else None
        return made or self.constant(contents)

    # Forms that changed between opsets --------------------------------------------------------

    def ints(self, *numbers: int, dtype: Any = np.int64) -> str:
        return self.constant(np.array(numbers, dtype))

    def with_ints(
        self,
        op_type: str,
        since: int,
        x: str,
        key: str,
        numbers: Sequence[int],
        outputs: int = 1,
        **more: Any,
    ) -> Any:
        """A node whose integers were an attribute before opset ``since`` and are an input from there on."""
        if self.opset < since:
            return self.op(op_type, x, outputs=outputs, **{key: list(numbers)}, **more)
        return self.op(op_type, x, self.ints(*numbers), outputs=outputs, **more)


#: Operators that may compute NaN, or infinities that become NaN, from numbers, also in their bodies.
MAKES_NAN = (
    *(
        "Log",
        "Sqrt",
        "Div",
        "Reciprocal",
        "Pow",
        "Mod",
        "Exp",
        "ReduceProd",
        "ReduceLogSum",
        "ReduceSumSquare",
    ),
    *("ReduceLogSumExp", "If", "Loop", "Scan", "BatchNormalization", "LayerNormalization"),
    *("InstanceNormalization", "RMSNormalization", "SequenceAt", "ConcatFromSequence", "Cast", "CastLike"),
)


#: Operators after which random values still differ clearly between two runs.
TELLING = ("Add", "Sub", "Neg", "Identity", "Transpose", "Reshape", "Unsqueeze", "Squeeze", "Concat")


def draws(node: onnx.NodeProto, g: Grower) -> bool:
    """Whether a node draws random numbers, also in its bodies or in a called function."""
    if node.op_type.startswith("Random"):
        return True
    if node.op_type == "Dropout" and len(node.input) > 2:
        return True
    if node.op_type == "BatchNormalization" and len(node.output) > 1:
        return True
    called = [function.node for function in g.functions if function.name == node.op_type]
    bodies = [attribute.g.node for attribute in node.attribute if attribute.type == onnx.AttributeProto.GRAPH]
    return any(draws(inner, g) for nodes in (*called, *bodies) for inner in nodes)


def reads_of(node: onnx.NodeProto) -> Iterator[str]:
    """The values that ``node`` reads, captures included."""
    yield from filter(None, node.input)
    for attribute in node.attribute:
        if attribute.type == onnx.AttributeProto.GRAPH:
            yield from captures(attribute.g)


def captures(graph: onnx.GraphProto) -> Iterator[str]:
    """The values that a body captures."""
    own = {value.name for value in graph.input} | {tensor.name for tensor in graph.initializer}
    for node in graph.node:
        yield from (name for name in reads_of(node) if name not in own)
        own.update(node.output)
    yield from (value.name for value in graph.output if value.name not in own)


def type_of(value: Any) -> onnx.TypeProto:
    """The type of a value, without dims."""
    if isinstance(value, list):
        return helper.make_sequence_type_proto(type_of(value[0]))
    data_type = (
        TensorProto.STRING if value.dtype.kind == "O" else helper.np_dtype_to_tensor_dtype(value.dtype)
    )
    return helper.make_tensor_type_proto(data_type, [None] * value.ndim)


def same(a: Array, b: Array) -> bool:
    return a.dtype == b.dtype and a.shape == b.shape and a.tobytes() == b.tobytes()


def broadcasts(a: Array, b: Array) -> bool:
    try:
        return len(np.broadcast_shapes(a.shape, b.shape)) <= _RANK
    except ValueError:
        return False


def _is_handy(value: Any) -> bool:
    if isinstance(value, list):
        return bool(value) and all(map(_is_handy, value))
    return isinstance(value, np.ndarray) and value.size <= _ELEMENTS and value.ndim <= _RANK
