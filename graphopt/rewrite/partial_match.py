"""Partial matches of a pattern, with the first mismatch."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import field, replace

from graphopt import ir
from graphopt.context import Context
from graphopt.ops import traits
from graphopt.rewrite.compiled_pattern import Bindings
from graphopt.rewrite.operand_checks import attribute_of, is_number, may_bind
from graphopt.rewrite.pattern import Literal, Operand, OpPattern, Var
from graphopt.util.lazy_dataclass import dataclass
from graphopt.util.text_tables import counted

#: Maximum number of visited readers of a value.
_READERS = 32

_Operand = ir.Value | tuple[ir.Value | None, ...] | None  # a tuple for ``rest()``


@dataclass(frozen=True)
class Mismatch:
    """A difference between a graph and a pattern.

    Attributes:
        pieces: one phrase, in pieces: text, nodes and values.
        value: the value that does not match, if any.
        node: the node found in place of the expected one, if any.
        hint: a remedy.
    """

    pieces: tuple[str | ir.Node | ir.Value, ...]
    value: ir.Value | None = None
    node: ir.Node | None = None
    hint: str | None = None

    @property
    def reason(self) -> str:
        """The phrase, such as ``expected Div before Softmax /x/Softmax, found Clip /x/Clip``."""
        return "".join(piece if isinstance(piece, str) else display_name(piece) for piece in self.pieces)

    @property
    def kind(self) -> str:
        """The phrase without names: ``expected Div before Softmax, found Clip``."""
        return "".join(_anonymous(piece) for piece in self.pieces)


@dataclass(frozen=True)
class PartialMatch:
    """A partial match of a pattern.

    Attributes:
        nodes: the matching nodes by node of the pattern, in the order of the search.
        gaps: the mismatches, in the order of the search; none for a complete match.
        bindings: the values of variables.
    """

    nodes: dict[OpPattern, ir.Node] = field(default_factory=dict)
    gaps: tuple[Mismatch, ...] = ()
    bindings: Bindings = field(default_factory=dict)

    def lacks(self, gap: Mismatch) -> PartialMatch:
        """This match with one more mismatch."""
        return replace(self, gaps=(*self.gaps, gap))


def paths_to(pattern: OpPattern, op_types: Sequence[str]) -> Iterator[tuple[OpPattern, ...]]:
    """The paths from the root of ``pattern`` to nodes that may be of ``op_types``, both ends included."""
    pending: list[tuple[OpPattern, ...]] = [(pattern,)]
    while pending:
        path = pending.pop()
        if any(op_type in op_types for op_type in path[-1].op_types):
            yield path
        pending += [(*path, below) for below in reversed(path[-1].below)]


class PartialMatcher:
    """Finds the best partial match of a pattern: most nodes, then fewest mismatches.

    Unlike a compiled pattern it continues after a mismatch, and skips one node, or a pair of
    QuantizeLinear and DequantizeLinear, between two nodes of the pattern. Operands are matched independently,
    so the first binding of a variable is kept.
    """

    def __init__(self, cx: Context) -> None:
        self._cx = cx

    def below(self, pattern: OpPattern, root: ir.Node) -> PartialMatch:
        """The partial match of ``pattern`` at ``root``, a node of its operator."""
        return self._partial(pattern, root, root, PartialMatch())

    def around(self, path: tuple[OpPattern, ...], anchor: ir.Node) -> tuple[ir.Node | None, PartialMatch]:
        """The partial match of the pattern ``path[0]`` with ``anchor`` at the end of ``path``.

        Also returns the node at the root of the pattern, if any.
        """
        reached = [anchor]
        for depth in range(len(path) - 2, -1, -1):
            above = [found for node in reached for found in _above(path[depth], node)]
            if not above:
                best = max(
                    (self.below(path[depth + 1], node) for node in reached), key=lambda one: len(one.nodes)
                )
                return None, replace(best, gaps=(_nothing_above(path[depth], reached[0]), *best.gaps))
            reached = list(dict.fromkeys(above))[:_READERS]
        tried = [(node, self.below(path[0], node)) for node in reached]
        return max(tried, key=lambda one: (len(one[1].nodes), -len(one[1].gaps)))

    def _partial(
        self, pattern: OpPattern, node: ir.Node, root: ir.Node, partial: PartialMatch
    ) -> PartialMatch:
        known = partial.nodes.get(pattern)
        if known is not None:
            if known is node:
                return partial
            return partial.lacks(Mismatch(("expected ", known, ", found ", node), None, node))
        if pattern.outputs is not None and pattern.outputs != len(node.outputs):
            partial = partial.lacks(
                Mismatch((node, f" has {counted(len(node.outputs), 'output')}"), None, node)
            )
        elif (bound := self._bind_attributes(pattern, node, partial.bindings)) is None:
            expected = ", ".join(
                f"{name} = {value}"
                for name, value in pattern.attributes.items()
                if not isinstance(value, Var)
            )
            partial = partial.lacks(Mismatch((node, f" has attributes other than {expected}"), None, node))
        else:
            partial = replace(partial, nodes={**partial.nodes, pattern: node}, bindings=bound)
        found = []
        for order in _orders(pattern, node):
            current = partial
            for operand, value in order:
                current = self._fits(operand, value, node, root, current)
            found.append(current)
        if not found:
            return partial.lacks(Mismatch((node, " has more inputs"), None, node))
        return max(found, key=lambda one: (len(one.nodes), -len(one.gaps)))

    def _fits(
        self, operand: Operand, value: _Operand, reader: ir.Node, root: ir.Node, partial: PartialMatch
    ) -> PartialMatch:
        if isinstance(operand, Var):
            bound = _bind(operand, value, partial.bindings)
            if bound is not None:
                return replace(partial, bindings=bound)
            other = partial.bindings.get(operand.name)
            expected = "a constant" if operand.kind == "constant" else "something"
            return partial.lacks(_gap(other if isinstance(other, ir.Value) else expected, value, reader))
        if isinstance(operand, Literal):
            if isinstance(value, ir.Value) and is_number(value, operand.number, self._cx):
                return partial
            return partial.lacks(_gap(f"the number {operand.number:g}", value, reader))
        pattern, index = (operand, 0) if isinstance(operand, OpPattern) else (operand.node, operand.index)
        producer = value.producer() if isinstance(value, ir.Value) else None
        if producer is None or producer.graph is not root.graph:
            return partial.lacks(_gap(" or ".join(pattern.op_types), value, reader))
        if is_of(pattern, producer):
            if producer.outputs[index] is not value:
                return partial.lacks(_gap(f"output {index} of {producer.op_type}", value, reader))
            return self._partial(pattern, producer, root, partial)
        for between in _steps(producer):
            for beyond in _producers(between[-1]):
                if is_of(pattern, beyond) and beyond.graph is root.graph:
                    return self._partial(
                        pattern, beyond, root, partial.lacks(_between(beyond, between, reader))
                    )
        return partial.lacks(_gap(" or ".join(pattern.op_types), value, reader))

    def _bind_attributes(self, pattern: OpPattern, node: ir.Node, bindings: Bindings) -> Bindings | None:
        bindings = dict(bindings)
        version = self._cx.version(node)
        for name, expected in pattern.attributes.items():
            value = attribute_of(node, name, version)
            if isinstance(value, ir.Attr):
                return None
            if isinstance(expected, Var):
                if expected.name in bindings and bindings[expected.name] != value:
                    return None
                bindings[expected.name] = value
            elif value != expected:
                return None
        return bindings


def _bind(variable: Var, value: _Operand, bindings: Bindings) -> Bindings | None:
    if not may_bind(variable, value):
        return None
    if variable.name in bindings:
        return bindings if bindings[variable.name] is value else None
    return {**bindings, variable.name: value}


def _orders(pattern: OpPattern, node: ir.Node) -> Iterator[list[tuple[Operand, _Operand]]]:
    """The ways to pair operands with inputs: one, or two for commutative operators."""
    inputs = node.inputs
    pairs: list[tuple[Operand, _Operand]] = []
    for index, operand in enumerate(pattern.operands):
        if isinstance(operand, Var) and operand.kind == "rest":
            pairs.append((operand, tuple(inputs[index:])))
            break
        pairs.append((operand, inputs[index] if index < len(inputs) else None))
    else:
        if any(value is not None for value in inputs[len(pattern.operands) :]):
            return
    yield pairs
    if len(pairs) == 2 and len(inputs) == 2 and traits.is_commutative(node.domain, node.op_type):
        (a, x), (b, y) = pairs
        yield [(a, y), (b, x)]


def is_of(pattern: OpPattern, node: ir.Node) -> bool:
    """Whether ``node`` is of the operator at the root of ``pattern``."""
    return node.op_type in pattern.op_types and node.domain == pattern.domain and not node.overload


def _above(pattern: OpPattern, node: ir.Node) -> list[ir.Node]:
    """Readers of ``node`` with the operator of ``pattern``; if there are none, those after a skipped node."""
    near = _readers(node)
    found = [reader for reader in near if is_of(pattern, reader)]
    ends = [end for reader in near for end in _steps(reader, _readers)]
    return found or [far for end in ends for far in _readers(end[-1]) if is_of(pattern, far)]


def _steps(
    node: ir.Node, further: Callable[[ir.Node], list[ir.Node]] | None = None
) -> list[tuple[ir.Node, ...]]:
    """Nodes that may be skipped within a pattern: ``node``, or a pair that quantizes and dequantizes."""
    pairs = [
        (node, other)
        for other in (further or _producers)(node)
        if {node.op_type, other.op_type} == {"QuantizeLinear", "DequantizeLinear"}
    ]
    return [(node,), *pairs]


def _producers(node: ir.Node) -> list[ir.Node]:
    found = [None if value is None else value.producer() for value in node.inputs]
    return [producer for producer in found if producer is not None]


def _readers(node: ir.Node) -> list[ir.Node]:
    found = dict.fromkeys(
        reader for output in node.outputs for reader in ir.readers(output) if reader.graph is node.graph
    )
    return list(found)[:_READERS]


def _between(beyond: ir.Node, between: tuple[ir.Node, ...], reader: ir.Node) -> Mismatch:
    first, last = between[-1], between[0]
    if first is last:
        hint = f"remove {display_name(first)}, or move it out of the pattern"
        return Mismatch((first, " is between ", beyond, " and ", reader), first.outputs[0], first, hint)
    both = f"{display_name(first)} and {display_name(last)}"
    hint = f"remove {both}: quantize the inputs and outputs of the pattern instead"
    pieces = (first, " and ", last, " are between ", beyond, " and ", reader)
    return Mismatch(pieces, last.outputs[0], last, hint)


def _nothing_above(pattern: OpPattern, node: ir.Node) -> Mismatch:
    expected, output = " or ".join(pattern.op_types), node.outputs[0]
    reader = next(iter(_readers(node)), None)
    there = reader if reader is not None else "an output" if output.is_graph_output() else "nothing"
    return Mismatch(("expected ", expected, " after ", node, ", found ", there), output, reader)


def _gap(expected: str | ir.Value, value: _Operand, reader: ir.Node) -> Mismatch:
    if not isinstance(value, ir.Value):
        return Mismatch(("expected ", expected, " before ", reader, ", found nothing"), None, reader)
    producer, remark = value.producer(), ""
    if producer is not None and producer.op_type == "Constant" and producer.domain == "":
        remark = "" if ir.constant_of(value) is not None else ", whose value is a parameter of the function"
    is_named = producer is None or ir.constant_of(value) is not None
    there = value if is_named or producer is None else producer
    pieces = ("expected ", expected, " before ", reader, ", found ", there, remark)
    return Mismatch(pieces, value, producer)


def _anonymous(piece: str | ir.Node | ir.Value) -> str:
    if isinstance(piece, ir.Value):
        return "a constant" if ir.constant_of(piece) is not None else "another value"
    return piece.op_type if isinstance(piece, ir.Node) else piece


def display_name(item: ir.Node | ir.Value) -> str:
    """Operator and name of a node, or the name of a value."""
    if isinstance(item, ir.Value):
        return f"constant {item.name!r}" if ir.constant_of(item) is not None else f"{item.name!r}"
    name = ir.label(item)
    return name if name.startswith(f"{item.op_type}(") else f"{item.op_type} {name}"
