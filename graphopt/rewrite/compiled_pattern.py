"""Compile a pattern to a chain of closures, which matches it by backtracking.

Each step checks one operand and calls the next step. A failure returns to the last commutative operator,
which then tries its operands in the other order. The steps are in preorder: the first occurrence of a
variable assigns its slot, and later ones compare with it, so that nothing is undone after a failure.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any, TypeAlias

from graphopt import ir
from graphopt.context import Context
from graphopt.ops import traits
from graphopt.rewrite.operand_checks import attribute_of, is_number, may_bind
from graphopt.rewrite.pattern import Literal, Operand, OpPattern, Var

#: The values of variables, of operands and attributes, by name.
Bindings: TypeAlias = dict[str, Any]
#: The context of a match, its root, and further slots for nodes, operands and values of attributes.
_Slots: TypeAlias = list[Any]
_Step: TypeAlias = Callable[[_Slots], bool]
#: Adds a check before a step.
_Check: TypeAlias = Callable[[_Step], _Step]

_CONTEXT, _ROOT = 0, 1


class CompiledPattern:
    """A pattern as a chain of steps."""

    def __init__(self, pattern: OpPattern) -> None:
        compiler = _Compiler()
        compiler.add_root(pattern)
        step: _Step = _matched
        for check in reversed(compiler.checks):
            step = check(step)
        self._first = step
        self._empty: _Slots = [None] * compiler.size
        self._variables = tuple(compiler.variables.items())
        self._nodes = tuple(compiler.nodes.items())

    def match(self, root: ir.Node, cx: Context) -> tuple[Bindings, dict[OpPattern, ir.Node]] | None:
        """The bindings, and the nodes in preorder, of the first match at ``root``, or ``None``."""
        slots = self._empty.copy()
        slots[_CONTEXT], slots[_ROOT] = cx, root
        if not self._first(slots):
            return None
        return (
            {name: slots[slot] for name, slot in self._variables},
            {pattern: slots[slot] for pattern, slot in self._nodes},
        )


#: The compiled form of a pattern, which is created on first use.
compiled = cache(CompiledPattern)


class _Compiler:
    """Translates a pattern to checks in preorder.

    Attributes:
        checks: the checks.
        size: the number of slots.
        variables: the slots of variables.
        nodes: the slots of nodes.
    """

    def __init__(self) -> None:
        self.checks: list[_Check] = []
        self.size = _ROOT + 1
        self.variables: dict[str, int] = {}
        self.nodes: dict[OpPattern, int] = {}

    def add_root(self, pattern: OpPattern) -> None:
        """Add the checks of the whole pattern."""
        self.nodes[pattern] = _ROOT
        self.checks.append(_is_operator(pattern))
        self._add_node(pattern, _ROOT)

    def _add_node(self, pattern: OpPattern, node: int) -> None:
        """Add the checks of attributes and operands of the node in slot ``node``."""
        for name, expected in pattern.attributes.items():
            if isinstance(expected, Var):
                slot, is_new = self._variable(expected.name)
                self.checks.append(_binds_attribute(node, name, slot, is_new=is_new))
            else:
                self.checks.append(_has_attribute(node, name, expected))
        first = self.size
        self.size += len(pattern.operands)
        self.checks.append(_takes_operands(pattern, node, first))
        for slot, operand in enumerate(pattern.operands, first):
            self._add_operand(operand, slot)

    def _add_operand(self, operand: Operand, slot: int) -> None:
        """Add the checks of the operand in ``slot``."""
        if isinstance(operand, Var):
            known, is_new = self._variable(operand.name)
            self.checks.append(_binds(operand, slot, known) if is_new else _repeats(operand, slot, known))
        elif isinstance(operand, Literal):
            self.checks.append(_equals_number(operand.number, slot))
        else:
            pattern, index = (operand, 0) if isinstance(operand, OpPattern) else (operand.node, operand.index)
            node = self.nodes.get(pattern)
            if node is not None:
                self.checks.append(_is_output_of(node, index, slot))
                return
            node = self.nodes[pattern] = self.size
            self.size += 1
            self.checks.append(_is_produced_by(pattern, index, slot, node))
            self._add_node(pattern, node)

    def _variable(self, name: str) -> tuple[int, bool]:
        """The slot of a variable, and whether this is its first occurrence."""
        slot = self.variables.get(name)
        if slot is not None:
            return slot, False
        slot = self.variables[name] = self.size
        self.size += 1
        return slot, True


def _matched(slots: _Slots) -> bool:
    return True


def _is_operator(pattern: OpPattern) -> _Check:
    op_types, domain, outputs = pattern.op_types, pattern.domain, pattern.outputs

    def check(then: _Step) -> _Step:
        def step(slots: _Slots) -> bool:
            node: ir.Node = slots[_ROOT]
            return (
                node.op_type in op_types
                and node.domain == domain
                and not node.overload
                and (outputs is None or outputs == len(node.outputs))
                and then(slots)
            )

        return step

    return check


def _is_produced_by(pattern: OpPattern, index: int, slot: int, into: int) -> _Check:
    """The value in ``slot`` is an output of a node of the operator, which is stored in slot ``into``."""
    op_types, domain, outputs = pattern.op_types, pattern.domain, pattern.outputs

    def check(then: _Step) -> _Step:
        def step(slots: _Slots) -> bool:
            value = slots[slot]
            node: ir.Node | None = value.producer() if isinstance(value, ir.Value) else None
            if node is None or node.op_type not in op_types or node.domain != domain or node.overload:
                return False
            if node.graph is not slots[_ROOT].graph:  # patterns do not match across graphs
                return False
            found = node.outputs
            if index >= len(found) or found[index] is not value or outputs not in (None, len(found)):
                return False
            slots[into] = node
            return then(slots)

        return step

    return check


def _is_output_of(node: int, index: int, slot: int) -> _Check:
    """The value in ``slot`` is an output of the node in slot ``node``."""

    def check(then: _Step) -> _Step:
        def step(slots: _Slots) -> bool:
            outputs = slots[node].outputs
            return index < len(outputs) and outputs[index] is slots[slot] and then(slots)

        return step

    return check


def _takes_operands(pattern: OpPattern, node: int, first: int) -> _Check:
    """The node's inputs fill the slots from ``first`` on; later steps may fail for one of two orders."""
    count = len(pattern.operands)
    last = pattern.operands[-1] if pattern.operands else None
    takes_rest = isinstance(last, Var) and last.kind == "rest"
    swaps = count == 2 and not takes_rest
    missing = (None,) * count

    def check(then: _Step) -> _Step:
        def step(slots: _Slots) -> bool:
            taken: ir.Node = slots[node]
            inputs = taken.inputs
            if takes_rest:
                values = (*inputs[: count - 1], *missing)[: count - 1]
                slots[first : first + count] = (*values, tuple(inputs[count - 1 :]))
                return then(slots)
            if len(inputs) != count:
                if any(value is not None for value in inputs[count:]):
                    return False
                inputs = (*inputs, *missing)[:count]
            slots[first : first + count] = inputs
            if then(slots):
                return True
            if swaps and len(taken.inputs) == 2 and traits.is_commutative(taken.domain, taken.op_type):
                slots[first], slots[first + 1] = inputs[1], inputs[0]
                return then(slots)
            return False

        return step

    return check


def _binds(variable: Var, slot: int, into: int) -> _Check:
    def check(then: _Step) -> _Step:
        def step(slots: _Slots) -> bool:
            value = slots[slot]
            if not may_bind(variable, value):
                return False
            slots[into] = value
            return then(slots)

        return step

    return check


def _repeats(variable: Var, slot: int, known: int) -> _Check:
    def check(then: _Step) -> _Step:
        def step(slots: _Slots) -> bool:
            value = slots[slot]
            return slots[known] is value and may_bind(variable, value) and then(slots)

        return step

    return check


def _equals_number(number: float, slot: int) -> _Check:
    def check(then: _Step) -> _Step:
        def step(slots: _Slots) -> bool:
            value = slots[slot]
            return isinstance(value, ir.Value) and is_number(value, number, slots[_CONTEXT]) and then(slots)

        return step

    return check


def _has_attribute(node: int, name: str, expected: object) -> _Check:
    def check(then: _Step) -> _Step:
        def step(slots: _Slots) -> bool:
            value = attribute_of(slots[node], name, slots[_CONTEXT].version(slots[node]))
            return not isinstance(value, ir.Attr) and value == expected and then(slots)

        return step

    return check


def _binds_attribute(node: int, name: str, slot: int, *, is_new: bool) -> _Check:
    def check(then: _Step) -> _Step:
        def step(slots: _Slots) -> bool:
            value = attribute_of(slots[node], name, slots[_CONTEXT].version(slots[node]))
            if isinstance(value, ir.Attr) or not (is_new or slots[slot] == value):
                return False
            slots[slot] = value
            return then(slots)

        return step

    return check
