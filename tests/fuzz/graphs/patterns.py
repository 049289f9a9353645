"""Instances of the patterns of rules, with random leaves."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import onnx

from graphopt.rewrite.pattern import Literal, Operand, OpPattern, OutputPattern, Var
from graphopt.rules import all_rules
from tests.fuzz.graphs.grower import Grower
from tests.fuzz.graphs.operators import OPERATORS, grow, known

#: Every pattern of every rule.
PATTERNS = [pattern for rule in all_rules() for pattern, _ in rule.patterns]


def instantiate(g: Grower, pattern: OpPattern) -> Any:
    """Add nodes that look like ``pattern``; returns the root's output, ``None`` if that can't be."""
    return _Instance(g).node(pattern)


@dataclass
class _Instance:
    """One instance: the bindings of its variables and operators."""

    g: Grower
    variables: dict[str, str] = field(default_factory=dict)
    made: dict[OpPattern, Any] = field(default_factory=dict)

    def node(self, pattern: OpPattern) -> Any:
        if pattern in self.made:
            return self.made[pattern]
        g = self.g
        fits = [name for name in known(g) if name in pattern.op_types]
        if pattern.domain or not fits:
            return None
        given: dict[int, str] = {}
        for index, operand in enumerate(pattern.operands):
            match operand:
                case OpPattern() | OutputPattern():
                    value = self._operand(operand)
                    if value is None:
                        return None
                    given[index] = value
                case Var(name) if name in self.variables:
                    given[index] = self.variables[name]
        for _ in range(3):
            result = self._root(pattern, g.choose(*fits), given)
            if result is not None:
                self.made[pattern] = result
                return result
        return None

    def _operand(self, operand: Operand) -> str | None:
        node, index = (operand.node, operand.index) if isinstance(operand, OutputPattern) else (operand, 0)
        assert isinstance(node, OpPattern)
        result = self.node(node)
        outputs = result if isinstance(result, tuple) else (result,)
        return outputs[index] if index < len(outputs) else None

    def _root(self, pattern: OpPattern, op_type: str, given: dict[int, str]) -> Any:
        """Add the node by a builder, then adapt it to the pattern."""
        g = self.g
        result = grow(g, op_type, given)
        if not result:
            return None
        place = len(g.scope.nodes) - 1
        node = g.scope.nodes[place]
        mended = onnx.NodeProto()
        mended.CopyFrom(node)
        self._constants(pattern, mended)
        self._attributes(pattern, mended)
        if mended != node:
            del g.scope.nodes[place]
            for name in node.output:
                g.scope.values.pop(name, None)
            result = g.add(mended)
        if result is not None:
            self._bind(pattern, mended)
        return result

    def _constants(self, pattern: OpPattern, node: onnx.NodeProto) -> None:
        """Insert the constants of the pattern."""
        g = self.g
        for index, operand in enumerate(pattern.operands):
            if index >= len(node.input) or not node.input[index]:
                if not isinstance(operand, Literal) or index != len(node.input):
                    continue
                node.input.append(g.constant(0.0, np.float32) if not node.input else node.input[0])
            name = node.input[index]
            contents = g.scope.values.get(name)  # none for statistics that a BatchNormalization updates
            if contents is None or not isinstance(contents[0], np.ndarray):
                continue
            array = g.array(name)
            if isinstance(operand, Literal):
                shape = array.shape if g.is_constant(name) else g.partner_shape(name)
                node.input[index] = g.constant(np.full(shape, operand.number), array.dtype)
            elif isinstance(operand, Var) and operand.kind == "constant" and not g.is_constant(name):
                small = array.dtype.kind in "iu" and array.ndim <= 1
                shape = array.shape if None not in g.static(name) else g.partner_shape(name)
                node.input[index] = g.constant(array if small else g.contents(array.dtype, shape))

    def _attributes(self, pattern: OpPattern, node: onnx.NodeProto) -> None:
        """Set the attributes with numbers in the pattern."""
        for name, value in pattern.attributes.items():
            if isinstance(value, Var):
                continue
            kept = [attribute for attribute in node.attribute if attribute.name != name]
            del node.attribute[:]
            node.attribute.extend([*kept, onnx.helper.make_attribute(name, value)])

    def _bind(self, pattern: OpPattern, node: onnx.NodeProto) -> None:
        for operand, name in zip(pattern.operands, node.input, strict=False):
            if isinstance(operand, Var) and operand.kind != "rest" and name:
                self.variables.setdefault(operand.name, name)


def unknown_operators() -> set[str]:
    """Operators of rules without a builder, which graphs never contain."""
    found: set[str] = set()
    pending: list[Any] = list(PATTERNS)
    while pending:
        item = pending.pop()
        if isinstance(item, OutputPattern):
            item = item.node
        if isinstance(item, OpPattern):
            if not item.domain:
                found.update(name for name in item.op_types if name not in OPERATORS)
            pending.extend(item.operands)
    return found
