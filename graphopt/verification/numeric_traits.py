"""Numeric traits of a model (float types, rounding, NaN, signed zeros) that determine how outputs compare."""

from __future__ import annotations

from collections.abc import Mapping
from enum import Flag, auto
from functools import reduce
from operator import or_

from graphopt import ir
from graphopt.ops import traits
from graphopt.util.lazy_dataclass import dataclass
from graphopt.verification.tolerances import FloatType


class _Trait(Flag):
    """A trait of the computation of a value."""

    DOUBLE = auto()
    FLOAT = auto()
    BFLOAT16 = auto()
    FLOAT16 = auto()
    FLOAT8 = auto()
    #: An operator that chooses between 0.0 and -0.0 by their position.
    EITHER_ZERO = auto()
    #: An operator whose kernels drop or keep a NaN depending on its position.
    NAN_BY_POSITION = auto()
    #: A quotient, whose infinity has the sign of a zero.
    POLE = auto()
    #: An operator that distinguishes NaN or infinities from other numbers.
    DETECTS_NAN = auto()
    #: An operator that rounds floats.
    ROUNDS = auto()
    #: An operator that always draws random numbers.
    RANDOM = auto()


_NONE = _Trait(0)
_FLOATS = _Trait.DOUBLE | _Trait.FLOAT | _Trait.BFLOAT16 | _Trait.FLOAT16 | _Trait.FLOAT8
_BY_OPERATOR = {
    **dict.fromkeys(("Max", "Min"), _Trait.EITHER_ZERO),
    **dict.fromkeys(
        ("ReduceMax", "ReduceMin", "MaxPool", "GlobalMaxPool"), _Trait.EITHER_ZERO | _Trait.NAN_BY_POSITION
    ),
    **dict.fromkeys(("LogSoftmax", "ArgMax", "ArgMin", "TopK"), _Trait.NAN_BY_POSITION),
    **dict.fromkeys(("Div", "Reciprocal", "Pow"), _Trait.POLE),
    **dict.fromkeys(("IsNaN", "IsInf", "Equal"), _Trait.DETECTS_NAN),
    # operators with float results for integers
    **dict.fromkeys(
        ("HannWindow", "HammingWindow", "BlackmanWindow", "MelWeightMatrix", "TfIdfVectorizer"), _Trait.FLOAT
    ),
}
_BY_NAME = {
    "DOUBLE": _Trait.DOUBLE,
    "FLOAT": _Trait.FLOAT,
    "BFLOAT16": _Trait.BFLOAT16,
    "FLOAT16": _Trait.FLOAT16,
}
_COARSEST: dict[_Trait, FloatType] = {
    _Trait.FLOAT8: "float8",
    _Trait.BFLOAT16: "bfloat16",
    _Trait.FLOAT16: "float16",
    _Trait.FLOAT: "float32",
    _Trait.DOUBLE: "float64",
}


@dataclass(frozen=True)
class NumericTraits:
    """Numeric traits of the computation of one output.

    Attributes:
        coarsest: the coarsest float type in the computation.
        sure_signs: whether the signs of zeros are determined: no maximum chooses between 0.0 and -0.0.
        sure_nans: whether the propagation of NaN is determined: no maximum drops NaN depending on its
            position.
        poles: whether the computation contains a division, so that the sign of an infinity may depend on the
            sign of a zero.
        detects_nan: whether an operator distinguishes NaN or infinities from other numbers.
        rounds: whether some float is rounded; otherwise rounding is no excuse for a difference.
        random: whether the computation depends on random numbers.
    """

    coarsest: FloatType = "float32"
    sure_signs: bool = True
    sure_nans: bool = True
    poles: bool = False
    detects_nan: bool = False
    rounds: bool = True
    random: bool = False

    @property
    def halves(self) -> bool:
        """Whether the computation is in half precision, for which onnxruntime inserts and removes casts."""
        return self.coarsest in ("float16", "bfloat16")


def numeric_traits_of(model: ir.Model) -> list[NumericTraits]:
    """The numeric traits of each output of ``model``, from its whole computation."""
    called: dict[object, _Trait] = {}
    flags = _traits_of_values(model.graph, {}, model, called)
    return [_numeric_traits(flags.get(output, _NONE)) for output in model.graph.outputs]


def traits_of_values(model: ir.Model) -> dict[ir.Value, NumericTraits]:
    """The numeric traits of each value of the main graph, from all nodes that it depends on."""
    return {
        value: _numeric_traits(flags)
        for value, flags in _traits_of_values(model.graph, {}, model, {}).items()
    }


def coarsest_of(model: ir.Model) -> FloatType:
    """The coarsest float type that any output of ``model`` depends on."""
    found = [output.coarsest for output in numeric_traits_of(model)]
    return next((name for name in _COARSEST.values() if name in found), "float32")


def _numeric_traits(flags: _Trait) -> NumericTraits:
    return NumericTraits(
        next((name for trait, name in _COARSEST.items() if trait in flags), "float32"),
        _Trait.EITHER_ZERO not in flags,
        _Trait.NAN_BY_POSITION not in flags,
        _Trait.POLE in flags,
        _Trait.DETECTS_NAN in flags,
        _Trait.ROUNDS in flags,
        _Trait.RANDOM in flags,
    )


def _traits_of_values(
    graph: ir.Graph, outer: Mapping[ir.Value, _Trait], model: ir.Model, called: dict[object, _Trait]
) -> dict[ir.Value, _Trait]:
    """The traits of every value of ``graph``. The traits of a body are united at its node."""
    found = dict(outer)
    for value in (*graph.inputs, *graph.initializers.values()):
        tensor = ir.constant_of(value)
        found[value] = _of_dtype(value.dtype if tensor is None else tensor.dtype)
    for node in graph:
        own = _of_node(node, model, called)
        for body in ir.bodies(node):
            own |= reduce(or_, (_of_node(inner, model, called) for inner in ir.walk_nodes(body)), _NONE)
        own = reduce(or_, (found.get(value, _NONE) for value in ir.reads(node)), own)
        if traits.reads_only_shape(node):
            own &= ~_Trait.RANDOM
        for output in node.outputs:
            flags = own | _of_dtype(output.dtype)
            found[output] = flags if flags & _FLOATS else flags & ~(_Trait.ROUNDS | _Trait.POLE)
    return found


def _of_node(node: ir.Node, model: ir.Model, called: dict[object, _Trait]) -> _Trait:
    """The traits of ``node`` itself, and of the function that it calls."""
    key = node.op_identifier()
    function = model.functions.get(key)
    if function is not None:
        if key not in called:
            called[key] = _NONE  # recursion is refused elsewhere
            called[key] = reduce(
                or_, (_of_node(inner, model, called) for inner in ir.walk_nodes(function.graph)), _NONE
            )
        return called[key]
    flags = _BY_OPERATOR.get(node.op_type, _NONE) if node.domain == "" else _NONE
    for attribute in node.attributes.values():
        if attribute.is_ref():
            continue
        if attribute.name in ("to", "dtype"):
            flags |= _of_dtype(ir.named_dtype(attribute))
        elif attribute.type == ir.AttributeType.TENSOR:
            flags |= _of_dtype(attribute.value.dtype)
    if _always_random(node):
        flags |= _Trait.RANDOM
    return flags | _Trait.ROUNDS if _rounds(node) else flags


def _always_random(node: ir.Node) -> bool:
    """Whether ``node`` draws random numbers in every run, regardless of its inputs."""
    if node.op_type == "Dropout" and len(node.inputs) > 2:
        ratio, training = (ir.scalar_of(value) if value is not None else None for value in node.inputs[1:3])
        return training is True and (node.inputs[1] is None or bool(ratio))
    return node.op_type != "BatchNormalization" and node.op_type != "Dropout" and traits.is_random(node)


#: Types that a Cast to float32 represents exactly.
_FEW_BITS = ("FLOAT16", "BFLOAT16", "BOOL", "INT8", "UINT8", "INT16", "UINT16")


def _rounds(node: ir.Node) -> bool:
    """Whether ``node`` itself rounds floats, if its inputs or outputs are floats."""
    if node.domain != "":
        return True
    if node.op_type == "Cast" and "to" in node.attributes:
        to, dtype = ir.named_dtype(node.attributes["to"]), node.inputs[0] and node.inputs[0].dtype
        kept = to == ir.DataType.FLOAT and dtype is not None and dtype.name in _FEW_BITS
        return not kept and to not in (ir.DataType.DOUBLE, ir.DataType.BOOL)
    return node.op_type not in traits.UNROUNDED and not ir.bodies(node)


def _of_dtype(dtype: ir.DataType | None) -> _Trait:
    name = "" if dtype is None else dtype.name
    return _Trait.FLOAT8 if name.startswith(("FLOAT8", "FLOAT4", "FLOAT6")) else _BY_NAME.get(name, _NONE)


@dataclass(frozen=True)
class Randomness:
    """Random numbers in a model.

    Attributes:
        varies: whether outputs vary from run to run.
        draws: whether random numbers are a cause; batch statistics also vary, but converge.
        indices: indices of the outputs that depend on random numbers in every run.
        drawn: indices of the outputs that may depend on random numbers; others may converge.
    """

    varies: bool
    draws: bool
    indices: frozenset[int]
    drawn: frozenset[int]


def randomness_of(model: ir.Model) -> Randomness:
    """The random numbers in ``model``, also in its bodies and functions."""
    random = [node.op_type for graph in ir.graphs_of(model) for node in graph if traits.is_random(node)]
    found = enumerate(numeric_traits_of(model) if random else ())
    outputs = frozenset(index for index, output in found if output.random)
    return Randomness(bool(random), any(map(_draws, random)), outputs, _drawn(model) if random else outputs)


def _draws(op_type: str) -> bool:
    return op_type != "BatchNormalization"  # which varies because it updates its statistics


def _drawn(model: ir.Model) -> frozenset[int]:
    """The outputs that depend on nodes that draw random numbers, perhaps in their bodies or functions."""

    def draws(graph: ir.Graph) -> bool:
        nodes = ir.walk_nodes(graph)
        return any(_draws(node.op_type) and traits.is_random(node) for node in nodes)

    draw_in_call = any(draws(function.graph) for function in model.functions.values())
    reached: set[ir.Value] = set()
    for node in model.graph:
        own = (_draws(node.op_type) and traits.is_random(node)) or any(map(draws, ir.bodies(node)))
        called = draw_in_call and any(
            inner.op_identifier() in model.functions
            for inner in (node, *(deep for body in ir.bodies(node) for deep in ir.walk_nodes(body)))
        )
        if own or called or not reached.isdisjoint(ir.reads(node)):
            reached.update(node.outputs)
    return frozenset(index for index, output in enumerate(model.graph.outputs) if output in reached)


def has_empty_tensors(model: ir.Model) -> bool:
    """Whether an input, initializer or Constant has no elements: onnxruntime may not write empty sums."""
    for graph in ir.graphs_of(model):
        constants = (node.outputs[0] for node in graph if node.op_type == "Constant" and node.outputs)
        for value in (*graph.inputs, *graph.initializers.values(), *constants):
            tensor = ir.constant_of(value)
            shape = tensor.shape if tensor is not None else value.shape
            if shape is not None and any(dim == 0 for dim in shape):
                return True
    return False
