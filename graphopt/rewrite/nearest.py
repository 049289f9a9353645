"""How much of a pattern is there, where not all of it is, and the first thing that is missing."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace

from graphopt import ir
from graphopt.rewrite.match import Bindings, Matcher, _equals, _Operand
from graphopt.rewrite.pattern import Literal, Operand, OpPattern, Var

#: Of nodes that read one value, so many are looked at.
_READERS = 32


@dataclass(frozen=True)
class Gap:
    """Where a graph departs from a pattern.

    Attributes:
        reason: one phrase, such as ``Div is expected before Softmax /x/Softmax, and Clip /x/Clip is there``.
        value: the value that does not fit, if it is one.
        node: the node that is there instead, if one is.
        hint: what to do about it.
    """

    reason: str
    value: ir.Value | None = None
    node: ir.Node | None = None
    hint: str | None = None


@dataclass(frozen=True)
class Partial:
    """What was found of a pattern.

    Attributes:
        nodes: the nodes that match, by their places in the pattern, and in the graph order of the search.
        gaps: what does not, first things first; none where all of it is there.
        bindings: the variables.
    """

    nodes: dict[OpPattern, ir.Node] = field(default_factory=dict)
    gaps: tuple[Gap, ...] = ()
    bindings: Bindings = field(default_factory=dict)

    def lacks(self, gap: Gap) -> Partial:
        """The same with one more gap."""
        return replace(self, gaps=(*self.gaps, gap))


def paths_to(pattern: OpPattern, op_types: Sequence[str]) -> Iterator[tuple[OpPattern, ...]]:
    """The ways from the root of ``pattern`` to its nodes that may be of ``op_types``, both ends included."""
    pending: list[tuple[OpPattern, ...]] = [(pattern,)]
    while pending:
        path = pending.pop()
        if any(op_type in op_types for op_type in path[-1].op_types):
            yield path
        pending += [(*path, below) for below in reversed(path[-1].below)]


class Nearest(Matcher):
    """Finds the best partial match of a pattern: most nodes, then fewest gaps.

    Unlike :meth:`Matcher.match` it goes on where something does not fit, and looks past one node that
    stands between two others. Each operand is judged by itself, so it takes the first binding of a
    variable for the right one.
    """

    def below(self, pattern: OpPattern, root: ir.Node) -> Partial:
        """What there is of ``pattern`` at ``root``, which is of its operator."""
        return self._partial(pattern, root, root, Partial())

    def around(self, path: tuple[OpPattern, ...], anchor: ir.Node) -> tuple[ir.Node | None, Partial]:
        """What there is of the pattern ``path[0]`` where ``anchor`` stands at the end of ``path``.

        Also returns the node that stands at its root, if one does.
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

    def _partial(self, pattern: OpPattern, node: ir.Node, root: ir.Node, sofar: Partial) -> Partial:
        known = sofar.nodes.get(pattern)
        if known is not None:
            if known is node:
                return sofar
            return sofar.lacks(Gap(f"{told(known)} is expected, and {told(node)} is there", None, node))
        if pattern.outputs is not None and pattern.outputs != len(node.outputs):
            sofar = sofar.lacks(Gap(f"{told(node)} has {len(node.outputs)} outputs", None, node))
        elif (bound := self._attributes(pattern, node, sofar.bindings)) is None:
            wanted = ", ".join(
                f"{name} = {value}"
                for name, value in pattern.attributes.items()
                if not isinstance(value, Var)
            )
            sofar = sofar.lacks(Gap(f"{told(node)} has other attributes than {wanted}", None, node))
        else:
            sofar = replace(sofar, nodes={**sofar.nodes, pattern: node}, bindings=bound)
        found = []
        for order in self._orders(pattern, node):
            current = sofar
            for operand, value in order:
                current = self._fits(operand, value, node, root, current)
            found.append(current)
        if not found:
            return sofar.lacks(Gap(f"{told(node)} has more inputs", None, node))
        return max(found, key=lambda one: (len(one.nodes), -len(one.gaps)))

    def _fits(
        self, operand: Operand, value: _Operand, reader: ir.Node, root: ir.Node, sofar: Partial
    ) -> Partial:
        if isinstance(operand, Var):
            bound = self._variable(operand, value, sofar.bindings)
            if bound is not None:
                return replace(sofar, bindings=bound)
            other = sofar.bindings.get(operand.name)
            wanted = "a constant" if operand.kind == "constant" else "something"
            wanted = f"{other.name!r}" if isinstance(other, ir.Value) else wanted
            return sofar.lacks(_gap(wanted, value, reader))
        if isinstance(operand, Literal):
            if isinstance(value, ir.Value) and _equals(value, operand.number):
                return sofar
            return sofar.lacks(_gap(f"the number {operand.number:g}", value, reader))
        pattern, index = (operand, 0) if isinstance(operand, OpPattern) else (operand.node, operand.index)
        producer = value.producer() if isinstance(value, ir.Value) else None
        if producer is None or producer.graph is not root.graph:
            return sofar.lacks(_gap(" or ".join(pattern.op_types), value, reader))
        if is_of(pattern, producer):
            if producer.outputs[index] is not value:
                return sofar.lacks(_gap(f"output {index} of {told(producer)}", value, reader))
            return self._partial(pattern, producer, root, sofar)
        for inner in producer.inputs:
            beyond = None if inner is None else inner.producer()
            if beyond is not None and is_of(pattern, beyond) and beyond.graph is root.graph:
                reason = f"{told(producer)} stands between {told(beyond)} and {told(reader)}"
                output = value if isinstance(value, ir.Value) else None
                hint = f"leave out {told(producer)}, or move it out of the pattern"
                return self._partial(pattern, beyond, root, sofar.lacks(Gap(reason, output, producer, hint)))
        return sofar.lacks(_gap(" or ".join(pattern.op_types), value, reader))


def is_of(pattern: OpPattern, node: ir.Node) -> bool:
    """Whether ``node`` is of the operator that ``pattern`` begins with."""
    return node.op_type in pattern.op_types and node.domain == pattern.domain and not node.overload


def _above(pattern: OpPattern, node: ir.Node) -> list[ir.Node]:
    """Nodes of ``pattern``'s operator that read ``node``, or if none does, what one node makes of it."""
    near = _readers(node)
    found = [reader for reader in near if is_of(pattern, reader)]
    return found or [far for reader in near for far in _readers(reader) if is_of(pattern, far)]


def _readers(node: ir.Node) -> list[ir.Node]:
    found = dict.fromkeys(
        reader for output in node.outputs for reader in ir.readers(output) if reader.graph is node.graph
    )
    return list(found)[:_READERS]


def _nothing_above(pattern: OpPattern, node: ir.Node) -> Gap:
    wanted, output = " or ".join(pattern.op_types), node.outputs[0]
    reader = next(iter(_readers(node)), None)
    there = told(reader) if reader is not None else "an output" if output.is_graph_output() else "nothing"
    return Gap(f"{wanted} is expected after {told(node)}, and {there} is there", output, reader)


def _gap(wanted: str, value: _Operand, reader: ir.Node) -> Gap:
    if not isinstance(value, ir.Value):
        return Gap(f"{wanted} is expected before {told(reader)}, and nothing is there", None, reader)
    producer = value.producer()
    if ir.constant_of(value) is not None:
        there = f"constant {value.name!r}"
    elif producer is not None and producer.op_type == "Constant" and producer.domain == "":
        there = f"{told(producer)}, whose number the calls of the function give,"
    else:
        there = f"{value.name!r}" if producer is None else told(producer)
    return Gap(f"{wanted} is expected before {told(reader)}, and {there} is there", value, producer)


def told(node: ir.Node) -> str:
    """Operator and name of ``node``."""
    name = ir.label(node)
    return name if name.startswith(f"{node.op_type}(") else f"{node.op_type} {name}"
