"""Sums of products with constants, merged into one product of concatenated operands.

``a @ U + b @ V`` is ``[a b] @ [U; V]``.
"""

from __future__ import annotations

from collections.abc import Iterator

from graphopt import ir
from graphopt.context import Context
from graphopt.rewrite.replacement_builder import Builder
from graphopt.transforms.products._shared_input_products import Member, drop, joined, members_of
from graphopt.util.lazy_dataclass import dataclass


@dataclass(frozen=True)
class Sum:
    """A tree of Adds.

    Attributes:
        root: the last Add.
        adders: all Adds, the root first.
        products: the summands that are MatMuls of one shape, with removable matrices.
        others: the other summands.
    """

    root: ir.Node
    adders: list[ir.Node]
    products: list[Member]
    others: list[ir.Value]


@dataclass(frozen=True)
class Tree:
    """A tree of Adds of one graph, in which each Add but the root has no other reader.

    Attributes:
        root: the last Add.
        adders: all Adds, the root first.
        summands: their operands that are no Adds of the tree, in order.
    """

    root: ir.Node
    adders: list[ir.Node]
    summands: list[ir.Value]


def trees_of(graph: ir.Graph) -> Iterator[Tree]:
    """Yield the trees of Adds of ``graph``; each may be replaced before the next is requested."""
    for root in [node for node in graph if _is_add(node) and not is_only_summand(node.outputs[0], graph)]:
        yield _tree(root, graph)


def sums_of(graph: ir.Graph, cx: Context) -> Iterator[Sum]:
    """Yield trees of Adds with at least two products; each may be merged before the next is requested."""
    for tree in trees_of(graph):
        found = _sum(tree, graph, cx)
        if len(found.products) > 1:
            yield found


def _is_add(node: ir.Node | None) -> bool:
    return node is not None and node.op_type == "Add" and not node.domain


def is_only_summand(value: ir.Value, graph: ir.Graph) -> bool:
    """Whether an Add of ``graph`` is the only reader of ``value``."""
    users = value.uses()
    if len(users) != 1 or value.is_graph_output():
        return False
    (use,) = users
    return _is_add(use.node) and use.node.graph is graph


def _tree(root: ir.Node, graph: ir.Graph) -> Tree:
    adders: list[ir.Node] = []
    summands: list[ir.Value] = []
    pending = [root]
    while pending:
        node = pending.pop()
        adders.append(node)
        for value in reversed(node.inputs):
            assert value is not None
            producer = value.producer()
            inner = producer is not None and producer.graph is graph and is_only_summand(value, graph)
            if producer is not None and inner and _is_add(producer):
                pending.append(producer)
            else:
                summands.append(value)
    return Tree(root, adders, summands[::-1])


def _sum(tree: Tree, graph: ir.Graph, cx: Context) -> Sum:
    products: list[Member] = []
    others: list[ir.Value] = []
    for value in tree.summands:
        member = _product(value, graph, cx)
        fits = member is not None and (not products or _same_form(products[0], member, cx))
        if member is not None and fits:
            products.append(member)
        else:
            others.append(value)
    return Sum(tree.root, tree.adders, products, others)


def _product(value: ir.Value, graph: ir.Graph, cx: Context) -> Member | None:
    """The MatMul x @ w with result ``value``, if a sum is its only reader."""
    node = value.producer()
    if (
        node is None
        or node.graph is not graph
        or node.op_type != "MatMul"
        or not is_only_summand(value, graph)
    ):
        return None
    member = next(members_of(node, cx), None)
    plain = member is not None and member.axis == 1 and member.adder is None
    return member if plain else None


def _same_form(a: Member, b: Member, cx: Context) -> bool:
    """Whether two products have the same shape, so that no sum of them is broadcast."""
    first, second = cx.shape(a.shared), cx.shape(b.shared)
    if first is None or second is None or len(first) != len(second) or a.width != b.width:
        return False
    return a.weight.dtype == b.weight.dtype and all(
        cx.facts.dim_equal(one, other) for one, other in zip(first[:-1], second[:-1], strict=True)
    )


def join(found: Sum, cx: Context, owner: str) -> None:
    """Replace the products of ``found`` and the Adds between them by one product."""
    action = cx.begin_rewrite(owner, found.root)
    if action is None:
        return
    op = Builder(cx, found.root)
    first = found.products[0]
    graph = found.root.graph
    assert graph is not None
    matrix = joined([member.weight for member in found.products], 0, graph, cx)
    axis = (cx.rank(first.shared) or 0) - 1
    total = op.MatMul(
        op.Concat(*(member.shared for member in found.products), axis=axis),
        op.constant(matrix, first.weight.name),
    )
    for value in found.others:
        total = op.Add(total, value)
    made = op.commit()
    nodes = [member.node for member in found.products]
    cx.edit.note_origin(made, [*nodes, *found.adders], owner)
    cx.edit.replace(found.root.outputs[0], total)
    for node in (*found.adders, *nodes):
        cx.edit.remove(node)
    drop([member.weight for member in found.products], cx)
    cx.end_rewrite(action, found.root, made)
