"""Match the nodes of two models: by structure, by names, and by their neighbours.

Every phase is linear in the models. A node is matched at most once, by the first phase that finds a partner:

1. equal computations from the inputs, which renamed models share;
2. names that an exporter derived from the source, and recorded origins, with the same operator;
3. neighbours of matched nodes, with the same operator;
4. equal uses down to the outputs, for nodes after a change;
5. numbered names with the same operator;
6. equal names, or an equal position in a matched node, with different operators: another computation of the
   same value.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping
from itertools import chain

from graphopt import ir
from graphopt.ir import printer
from graphopt.modeldiff.changes import Matching
from graphopt.modeldiff.snapshot import Ident, Key, Snapshot

#: Names that contain only a position in the file.
_NUMBERED = re.compile(r"([A-Za-z:_]*[_:])?\d+")

_Function = tuple[str, str, str]


def match(before: ir.Model, after: ir.Model, one: Snapshot, other: Snapshot) -> Matching:
    """The matching of lines and values of two models.

    Args:
        one: the lines of ``before``.
        other: the lines of ``after``.
    """
    functions = _match_functions(before, after)
    matcher = _Matcher(before, after, functions)
    matcher.run()
    return _lines(matcher, one, other, functions)


def _match_functions(before: ir.Model, after: ir.Model) -> dict[_Function, _Function]:
    """Match functions by identifier, and the others by equal structure."""
    found = {key: key for key in before.functions if key in after.functions}
    rest = [key for key in after.functions if key not in found]
    if rest and len(found) < len(before.functions):
        ours, theirs = ir.function_fingerprints(before), ir.function_fingerprints(after)
        by_print = {theirs[key]: key for key in reversed(rest)}
        for key in before.functions:
            partner = by_print.pop(ours[key], None) if key not in found else None
            if partner is not None:
                found[key] = partner
    return found


class _Numbers(dict[Hashable, int]):
    """Small integers that are equal for equal keys only."""

    def __missing__(self, key: Hashable) -> int:
        self[key] = len(self)
        return self[key]


class _Side:
    """One of the two models, with numbers that identify its nodes and values.

    Attributes:
        forward: for each value, a number that identifies its computation.
        backward: for each node, a number that identifies the set of its uses.
    """

    def __init__(self, model: ir.Model, numbers: _Numbers, alias: Mapping[_Function, _Function]) -> None:
        self._numbers = numbers
        self._alias = alias
        self._operators: dict[ir.Node, int] = {}
        self.forward: dict[ir.Value, int] = {}
        self.backward: dict[ir.Node, int] = {}
        for graph in (model.graph, *(function.graph for function in model.functions.values())):
            self._walk(graph)
        for graph in ir.graphs_of(model):
            self._walk_back(graph)

    def name(self, node: ir.Node) -> _Function:
        """The operator; a function has its name in the other model."""
        key = node.op_identifier()
        return self._alias.get(key, key)

    def operator(self, node: ir.Node) -> int:
        """The number that identifies the operator and its attributes, without bodies."""
        known = self._operators.get(node)
        if known is None:
            attributes = [
                (name, ir.attribute_key(node.attributes[name]))
                for name, _ in (printer.attributes(node) if node.attributes else ())
            ]
            number = self._numbers[("operator", self.name(node), tuple(attributes))]
            known = self._operators[node] = number
        return known

    def value(self, value: ir.Value | None) -> int:
        """The number that identifies a value, regardless of the graph that defines it."""
        if value is None:
            return -1
        if value not in self.forward:
            self.forward[value] = self._source(value)
        return self.forward[value]

    def _source(self, value: ir.Value) -> int:
        tensor = ir.constant_of(value)
        if tensor is not None:
            return self._numbers[("constant", ir.hash_of(tensor))]
        return self._numbers[("source", value.name)]

    def _walk(self, root: ir.Graph) -> None:
        results: dict[ir.Graph, tuple[int, ...]] = {}
        for step, graph, node in ir.in_order(root):
            if step == "enter":
                for index, value in enumerate(graph.inputs):
                    inner = graph is not root and not value.is_initializer()
                    if inner:
                        self.forward[value] = self._numbers[("inner", index)]
            elif step == "leave":
                results[graph] = tuple(map(self.value, graph.outputs))
            elif step == "define" and node is not None:
                bodies = tuple((name, results[body]) for name, body in printer.named_bodies(node))
                operands = tuple(map(self.value, node.inputs))
                number = self._numbers[("node", self.operator(node), operands, bodies)]
                for index, output in enumerate(node.outputs):
                    constant = ir.constant_of(output) is not None
                    self.forward[output] = (
                        self._source(output) if constant else self._numbers[("output", number, index)]
                    )

    def _walk_back(self, graph: ir.Graph) -> None:
        returned: dict[ir.Value, int] = {value: index for index, value in enumerate(graph.outputs)}
        for node in reversed(graph):
            uses = []
            for output in node.outputs:
                readers = [
                    (self.backward.get(use.node, -1), use.idx) if use.node.graph is graph else (-2, 0)
                    for use in output.uses()
                ]
                uses.append((returned.get(output, -1), tuple(sorted(readers))))
            constants = tuple(
                self.value(value) if ir.constant_of(value) is not None else None for value in node.inputs
            )
            self.backward[node] = self._numbers[("uses", self.operator(node), constants, tuple(uses))]


class _Matcher:
    """Matches nodes, graph by graph, outer graphs first."""

    def __init__(self, before: ir.Model, after: ir.Model, functions: Mapping[_Function, _Function]) -> None:
        numbers = _Numbers()
        self.one = _Side(before, numbers, functions)
        self.other = _Side(after, numbers, {})
        self.nodes: dict[ir.Node, ir.Node] = {}
        self.graphs: dict[ir.Graph, ir.Graph] = {before.graph: after.graph}
        for key, partner in functions.items():
            self.graphs[before.functions[key].graph] = after.functions[partner].graph
        self._partners: dict[ir.Node, None] = {}
        self._fresh: list[ir.Node] = []

    def run(self) -> None:
        pending = list(self.graphs.items())
        while pending:
            ours, theirs = pending.pop()
            self._graph(ours, theirs)
            for node in ours:
                partner = self.nodes.get(node)
                if partner is not None and node.attributes:
                    bodies = dict(printer.named_bodies(partner))
                    pairs = [
                        (body, bodies[name]) for name, body in printer.named_bodies(node) if name in bodies
                    ]
                    self.graphs.update(pairs)
                    pending += pairs

    def _graph(self, ours: ir.Graph, theirs: ir.Graph) -> None:
        self._pair_by_key(ours, theirs, _computation)
        self._by_name(ours, theirs, lambda name: not _NUMBERED.fullmatch(name), same_operator=True)
        self._by_origin(ours, theirs)
        self._spread()
        self._pair_by_key(ours, theirs, lambda side, node: side.backward[node])
        self._spread()
        self._by_name(ours, theirs, lambda name: True, same_operator=True)
        self._spread()
        self._by_name(ours, theirs, lambda name: not _NUMBERED.fullmatch(name), same_operator=False)
        self._by_reader(ours)

    def _pair(self, node: ir.Node, partner: ir.Node) -> None:
        self.nodes[node] = partner
        self._partners[partner] = None
        self._fresh.append(node)

    def _free(self, graph: ir.Graph, known: Iterable[ir.Node]) -> list[ir.Node]:
        paired = known if isinstance(known, dict) else dict.fromkeys(known)
        return [node for node in graph if node not in paired and not _is_inlined(node)]

    def _pair_by_key(
        self, ours: ir.Graph, theirs: ir.Graph, key: Callable[[_Side, ir.Node], int | None]
    ) -> None:
        """Pair free nodes with equal ``key``: nodes with equal names first, the others in order."""
        groups: dict[int | None, list[ir.Node]] = {}
        for node in self._free(theirs, self._partners):
            groups.setdefault(key(self.other, node), []).append(node)
        waiting: dict[int | None, list[ir.Node]] = {}
        for node in self._free(ours, self.nodes):
            number = key(self.one, node)
            if number is not None and number in groups:
                waiting.setdefault(number, []).append(node)
        for number, nodes in waiting.items():
            named = {_name(partner): partner for partner in reversed(groups[number])}
            rest = []
            for node in nodes:
                partner = named.pop(_name(node), None)
                if partner is None:
                    rest.append(node)
                else:
                    self._pair(node, partner)
            left = [partner for partner in groups[number] if partner not in self._partners]
            for node, partner in zip(rest, left, strict=False):
                self._pair(node, partner)

    def _by_name(
        self, ours: ir.Graph, theirs: ir.Graph, counts: Callable[[str], bool], *, same_operator: bool
    ) -> None:
        named = {_name(node): node for node in self._free(theirs, self._partners)}
        for node in self._free(ours, self.nodes):
            name = _name(node)
            partner = named.get(name) if name and counts(name) else None
            if partner is None or partner in self._partners:
                continue
            if not same_operator or self._are_akin(node, partner):
                self._pair(node, partner)

    def _by_origin(self, ours: ir.Graph, theirs: ir.Graph) -> None:
        """Pair free nodes if one was derived only from the other, or both have the same name."""
        named = {ir.label(node): node for node in self._free(ours, self.nodes)}
        for partner in self._free(theirs, self._partners):
            origin, *others = ir.origins(partner)
            node = named.get(origin) if not others and not _NUMBERED.fullmatch(origin) else None
            if node is not None and node not in self.nodes and self._are_akin(node, partner):
                self._pair(node, partner)

    def _by_reader(self, ours: ir.Graph) -> None:
        """Pair free nodes whose results are operands of matched nodes at the same position."""
        for reader in reversed(ours):
            partner = self.nodes.get(reader)
            if partner is None:
                continue
            for value, twin in zip(reader.inputs, partner.inputs, strict=False):
                if value is not None and twin is not None and value.index() == twin.index():
                    self._try(value.producer(), twin.producer(), any_operator=True)

    def _are_akin(self, node: ir.Node, partner: ir.Node) -> bool:
        return self.one.name(node) == self.other.name(partner)

    def _spread(self) -> None:
        """Match the operands and readers of newly matched nodes if only one pair is possible."""
        while self._fresh:
            node = self._fresh.pop()
            partner = self.nodes[node]
            for value, twin in zip(node.inputs, partner.inputs, strict=False):
                if value is not None and twin is not None and value.index() == twin.index():
                    self._try(value.producer(), twin.producer())
            for output, twin in zip(node.outputs, partner.outputs, strict=False):
                mine, theirs = self._readers(output, self.nodes), self._readers(twin, self._partners)
                for key, reader in mine.items():
                    self._try(reader, theirs.get(key))

    def _try(self, node: ir.Node | None, partner: ir.Node | None, *, any_operator: bool = False) -> None:
        if node is None or partner is None or node in self.nodes or partner in self._partners:
            return
        if node.graph is None or self.graphs.get(node.graph) is not partner.graph:
            return
        if (
            (any_operator or self._are_akin(node, partner))
            and not _is_inlined(node)
            and not _is_inlined(partner)
        ):
            self._pair(node, partner)

    def _readers(
        self, value: ir.Value, matched: Mapping[ir.Node, object]
    ) -> dict[tuple[object, ...], ir.Node | None]:
        """The free reader for each operator and position; ``None`` if there are several."""
        found: dict[tuple[object, ...], ir.Node | None] = {}
        for use in value.uses():
            if use.node not in matched:
                key = use.node.op_type, use.idx
                found[key] = None if key in found else use.node
        return found


def _computation(side: _Side, node: ir.Node) -> int | None:
    return side.forward[node.outputs[0]] if node.outputs else None


def _name(node: ir.Node) -> str:
    return next((output.name for output in node.outputs if output.name), "")


def _is_inlined(node: ir.Node) -> bool:
    return node.op_type == "Constant" and bool(node.outputs) and printer.is_inlined(node.outputs[0])


def _lines(
    matcher: _Matcher, one: Snapshot, other: Snapshot, functions: Mapping[_Function, _Function]
) -> Matching:
    """Convert the matching of nodes and graphs to a matching of lines and values."""
    values: dict[Ident, Ident] = {}
    lines: dict[Key, Key] = {}
    twins = {line.node: line for line in other.lines.values() if line.node is not None}
    for line in one.lines.values():
        partner = matcher.nodes.get(line.node) if line.node is not None else None
        if partner is not None and partner in twins:
            lines[line.key] = twins[partner].key
            values |= zip(line.idents, twins[partner].idents, strict=False)
    paths = {one.paths[ours]: other.paths[theirs] for ours, theirs in matcher.graphs.items()}
    for ours, theirs in matcher.graphs.items():
        for value, twin in chain(_inputs(ours, theirs), _weights(ours, theirs)):
            values[one.idents[value]] = other.idents[twin]
    by_ident = {line.idents: line.key for line in other.lines.values() if line.idents}
    for line in one.lines.values():
        if line.kind in ("input", "constant"):
            key = by_ident.get(tuple(values[ident] for ident in line.idents if ident in values))
        else:
            key = (paths[line.path], *line.key[1:]) if line.path in paths else None
        if line.node is None and key is not None and key in other.lines:
            lines[line.key] = key
    operators = {
        printer.operator_of(*ours): printer.operator_of(*theirs)
        for ours, theirs in functions.items()
        if ours != theirs
    }
    return Matching(lines, _strict(values, one, other), operators=operators)


def _inputs(ours: ir.Graph, theirs: ir.Graph) -> Iterator[tuple[ir.Value, ir.Value]]:
    """Pairs of inputs: by name, and the others by position."""
    named = {value.name: value for value in theirs.inputs}
    pairs = [(value, named[value.name]) for value in ours.inputs if value.name in named]
    yield from pairs
    paired = dict.fromkeys(chain.from_iterable(pairs))
    rest = ([value for value in graph.inputs if value not in paired] for graph in (ours, theirs))
    yield from zip(*rest, strict=False)


def _weights(ours: ir.Graph, theirs: ir.Graph) -> Iterator[tuple[ir.Value, ir.Value]]:
    """Pairs of initializers that have lines: equal ones, with equal names where possible, then by name."""
    free = {value: _contents(value) for value in theirs.initializers.values() if _has_line(value)}
    waiting = [(value, _contents(value)) for value in ours.initializers.values() if _has_line(value)]
    named = {value.name: value for value in free}
    for same_name, same_contents in ((True, True), (False, True), (True, False)):
        by_contents: dict[str, list[ir.Value]] = {}
        for value, contents in reversed(free.items()):
            by_contents.setdefault(contents, []).append(value)
        left = []
        for value, contents in waiting:
            if same_name:
                twin = named.get(value.name)
                found = twin in free and (not same_contents or free[twin] == contents) if twin else False
            else:
                twin = by_contents[contents].pop() if by_contents.get(contents) else None
                found = twin is not None
            if found and twin is not None:
                del free[twin]
                yield value, twin
            else:
                left.append((value, contents))
        waiting = left


def _contents(value: ir.Value) -> str:
    assert value.const_value is not None
    return ir.hash_of(value.const_value)


def _has_line(value: ir.Value) -> bool:
    return value.const_value is not None and not value.is_graph_input() and not printer.is_inlined(value)


def _strict(values: dict[Ident, Ident], one: Snapshot, other: Snapshot) -> dict[Ident, Ident]:
    """``values``, with a nonexistent partner for each value without one."""
    used = dict.fromkeys(values.values())
    strict = dict(values)
    for ident in one.shown:
        if ident not in strict:
            strict[ident] = ident if ident in other.shown and ident not in used else ("\0", ident[1])
    return strict
