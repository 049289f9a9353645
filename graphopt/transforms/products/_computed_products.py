"""Merge products of computed values, if they share an operand or are summed, into one product.

``a @ U, a @ V`` is ``Split(a @ [U V])``, ``a @ U, b @ U`` is ``Split([a; b] @ U)``, and ``a @ U + b @ V`` is
``[a b] @ [U; V]``. Modelled on ``torch/csrc/jit/passes/batch_mm.cpp``.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Hashable, Iterator, Sequence

import numpy as np

from graphopt import ir
from graphopt.analysis.symbolic import product
from graphopt.context import Context, Dim
from graphopt.partitioning.outline_groups import in_rows
from graphopt.partitioning.propose_groups import edges
from graphopt.rewrite.replacement_builder import Builder
from graphopt.transforms.products._product_sums import Tree, is_only_summand, trees_of
from graphopt.transforms.products._shared_input_products import is_quantized
from graphopt.util.lazy_dataclass import dataclass

#: Cases of the table of costs, by the index of the shared operand.
SHARED_CASES = ("computed, shared input", "computed, shared matrix")
SUM_CASE = "computed, sum"


@dataclass(frozen=True)
class Group:
    """Products to merge.

    Attributes:
        case: the case of the table of costs.
        nodes: the MatMuls, in the order of the graph, at least two; no path leads from one to another.
        matrix: the shape of the right operand of each product, batch axes included.
        rows: the number of vectors that each product multiplies with a matrix, if known.
        shared: the index of the shared operand; ``None`` for a sum.
        tree: the Adds of a sum.
    """

    case: str
    nodes: tuple[ir.Node, ...]
    matrix: tuple[Dim, ...]
    rows: Dim | None
    shared: int | None = None
    tree: Tree | None = None

    @property
    def operands(self) -> list[ir.Value]:
        """The values to concatenate."""
        sides = (0, 1) if self.shared is None else (1 - self.shared,)
        values = [node.inputs[side] for side in sides for node in self.nodes]
        return [value for value in values if value is not None]

    @property
    def is_batched(self) -> bool:
        """Whether each product is a batch of products of matrices."""
        return len(self.matrix) > 2

    @property
    def width(self) -> int | None:
        """The size of a square matrix with as many elements as the right operands have, if known."""
        sizes = ir.all_ints(self.matrix)
        return None if sizes is None else round(math.sqrt(math.prod(sizes)))


@dataclass(frozen=True)
class _Operands:
    """The shapes of the operands of a MatMul, which have at least two axes and no unknown ones."""

    left: tuple[Dim, ...]
    right: tuple[Dim, ...]

    @classmethod
    def of(cls, node: ir.Node, cx: Context) -> _Operands | None:
        """The shapes of the operands of ``node``; ``None`` if it is no MatMul, or they are not known."""
        if node.op_type != "MatMul" or node.domain or is_quantized(node):
            return None
        left, right = (None if value is None else cx.shape(value) for value in node.inputs)
        known = left is not None and right is not None and min(len(left), len(right)) > 1
        if left is None or right is None or not known or None in left or None in right:
            return None
        return cls(left, right)

    def group(
        self, case: str, nodes: Sequence[ir.Node], *, shared: int | None = None, tree: Tree | None = None
    ) -> Group:
        return Group(case, tuple(nodes), self.right, product(self.left[:-1]), shared, tree)


# Sums ---------------------------------------------------------------------------------------------


def sums_in(graph: ir.Graph, cx: Context) -> Iterator[Group]:
    """Yield sums with several products of computed values of one form; each may be merged before the next."""
    for tree in trees_of(graph):
        forms: dict[Hashable, list[ir.Node]] = {}
        for value in tree.summands:
            node = value.producer()
            if node is None or node.graph is not graph or not is_only_summand(value, graph):
                continue
            operands = _Operands.of(node, cx)
            if operands is not None and not any(map(_is_constant, node.inputs)):
                form = (operands.left[:-1], operands.right[:-2], operands.right[-1], cx.dtype(value))
                forms.setdefault(form, []).append(node)
        nodes = max(forms.values(), key=len, default=[])
        operands = _Operands.of(nodes[0], cx) if len(nodes) > 1 else None
        if operands is not None:
            yield operands.group(SUM_CASE, nodes, tree=tree)


def merge_sum(group: Group, cx: Context, owner: str) -> None:
    """Replace the products of a sum, and the Adds between them, by one product."""
    tree = group.tree
    assert tree is not None
    action = cx.begin_rewrite(owner, tree.root)
    if action is None:
        return
    op = Builder(cx, tree.root)
    sides = []
    for index, back in ((0, 1), (1, 2)):
        values = [node.inputs[index] for node in group.nodes]
        rank = cx.rank(values[0]) if values[0] is not None else None
        sides.append(op.Concat(*values, axis=(rank or 0) - back))
    total = op.MatMul(*sides)
    merged = {node.outputs[0] for node in group.nodes}
    for value in tree.summands:
        if value not in merged:
            total = op.Add(total, value)
    made = op.commit()
    cx.edit.note_origin(made, [*group.nodes, *tree.adders], owner)
    cx.edit.replace(tree.root.outputs[0], total)
    for node in (*tree.adders, *group.nodes):
        cx.edit.remove(node)
    cx.end_rewrite(action, tree.root, made)


# Shared operands ----------------------------------------------------------------------------------


def groups_in(graph: ir.Graph, cx: Context) -> list[Group]:
    """The products of computed values that share an operand, in disjoint groups.

    All groups may be merged: no path leads from one group back to it, even through other groups. A *level*
    is the maximum number of candidates on a path to a node; candidates of one level are independent.
    """
    nodes = list(graph)
    keys_of = {node: _keys(node, operands) for node in nodes if (operands := _Operands.of(node, cx))}
    counts = Counter(key for keys in keys_of.values() for key in keys)
    # the first key if both are equally frequent
    best = {node: max(keys, key=lambda key: counts[key]) for node, keys in keys_of.items() if keys}
    best = {node: key for node, key in best.items() if counts[key] > 1}
    if not best:
        return []
    levels = [0] * len(nodes)
    for index, readers in enumerate(edges(nodes, _is_ordered(cx))):
        behind = levels[index] + (nodes[index] in best)
        for reader in readers:
            levels[reader] = max(levels[reader], behind)
    groups: dict[Hashable, dict[ir.Value | None, ir.Node]] = {}
    for index, node in enumerate(nodes):
        if node in best:  # one of several equal products, which cse merges
            other = node.inputs[1 - best[node][1]]
            groups.setdefault((best[node], levels[index]), {}).setdefault(other, node)
    several = [list(group.values()) for group in groups.values() if len(group) > 1]
    return [_shared_group(group, best[group[0]][1], cx) for group in several]


#: The shared operand, its index, and the properties that the other operands must have in common.
_Key = tuple[ir.Value, int, Hashable]


def _keys(node: ir.Node, operands: _Operands) -> list[_Key]:
    """The groups that ``node`` may belong to."""
    keys: list[_Key] = []
    for shared, axis, shape in ((0, -1, operands.right), (1, -2, operands.left)):
        value, other = node.inputs[shared], node.inputs[1 - shared]
        size = shape[axis]
        if value is not None and not _is_constant(other) and isinstance(size, int) and size > 0:
            keys.append((value, shared, shape[:-2]))
    return keys


def _shared_group(nodes: Sequence[ir.Node], shared: int, cx: Context) -> Group:
    operands = _Operands.of(nodes[0], cx)
    assert operands is not None
    return operands.group(SHARED_CASES[shared], nodes, shared=shared)


def _is_constant(value: ir.Value | None) -> bool:
    return ir.computable(value) is not None


def _is_ordered(cx: Context) -> Callable[[ir.Node], bool]:
    """Whether a node has hidden state, and so keeps its position among such nodes."""
    return lambda node: cx.has_to_run(node) or not cx.is_deterministic(node)


def merge_shared(groups: Sequence[Group], graph: ir.Graph, cx: Context, owner: str) -> None:
    """Replace each of ``groups``, all of ``graph``, by one product and a Split."""
    started = [(group, cx.begin_rewrite(owner, group.nodes[0])) for group in groups]
    allowed = [(group, action) for group, action in started if action is not None]
    if not allowed:
        return
    readers_of = edges(list(graph), _is_ordered(cx))
    cx.edit.reorder(graph, in_rows(graph, [group.nodes for group, _ in allowed], readers_of))
    for group, action in allowed:
        first = group.nodes[0]
        made = _merge(group, cx, owner)
        cx.end_rewrite(action, first, made)


def _merge(group: Group, cx: Context, owner: str) -> list[ir.Node]:
    first, shared = group.nodes[0], group.shared
    assert shared is not None
    back = 2 if shared else 1  # the axis of the concatenation, from the end
    others = [node.inputs[1 - shared] for node in group.nodes]
    shapes = [cx.shape(value) for value in others if value is not None]
    widths = [shape[-back] for shape in shapes if shape is not None]
    op = Builder(cx, first)
    wide = op.Concat(*others, axis=len(shapes[0] or ()) - back)
    result = op.MatMul(wide, first.inputs[1]) if shared else op.MatMul(first.inputs[0], wide)
    rank = max(cx.rank(value) or 0 for value in first.inputs if value is not None)
    if cx.version(first) >= 13:
        outputs = op.Split(result, np.array(widths, np.int64), outputs=len(widths), axis=rank - back)
    else:
        outputs = op.Split(result, outputs=len(widths), axis=rank - back, split=widths)
    made = op.commit()
    cx.edit.note_origin(made, group.nodes, owner)
    for node, output in zip(group.nodes, outputs, strict=True):
        cx.edit.replace(node.outputs[0], output)
        cx.edit.remove(node)
    return made
