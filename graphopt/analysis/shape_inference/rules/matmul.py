"""Matrix products and Einsum."""

from __future__ import annotations

import string

from graphopt import ir
from graphopt.analysis.shape_inference.node_facts import NodeFacts, shape_rule
from graphopt.analysis.shape_inference.value_facts import Fact, ShapeTuple
from graphopt.analysis.symbolic import Dim


def matmul_shape(node: NodeFacts, a: ShapeTuple | None, b: ShapeTuple | None) -> ShapeTuple | None:
    """The shape of ``numpy.matmul``."""
    if a is None or b is None:
        return None
    rows, columns = a[-2:-1], b[-1:]
    if len(a) == 1:
        rows = ()
    if len(b) == 1:
        columns = ()
    batch = node.broadcast([a[:-2], b[:-2]])
    return (*(batch or ()), *rows, *columns)


@shape_rule("MatMul")
def matmul(node: NodeFacts) -> Fact:
    return Fact(node.dtype(0), matmul_shape(node, node.shape(0), node.shape(1)))


@shape_rule("MatMulInteger")
def matmul_integer(node: NodeFacts) -> Fact:
    return Fact(ir.DataType.INT32, matmul_shape(node, node.shape(0), node.shape(1)))


@shape_rule("QLinearMatMul")
def qlinear_matmul(node: NodeFacts) -> Fact:
    """The output has the dtype of its zero point."""
    return Fact(node.dtype(7), matmul_shape(node, node.shape(0), node.shape(3)))


@shape_rule("Gemm")
def gemm(node: NodeFacts) -> Fact:
    """The product of two matrices, either possibly transposed."""
    a, b = node.shape(0), node.shape(1)
    rows: Dim = node.fresh() if a is None else a[1 if node.attr_int("transA", 0) else 0]
    columns: Dim = node.fresh() if b is None else b[0 if node.attr_int("transB", 0) else 1]
    return Fact(node.dtype(0), (rows, columns))


@shape_rule("Einsum")
def einsum(node: NodeFacts) -> Fact:
    """The dims of a letter broadcast together; an ellipsis represents batch dims."""
    dtype = node.dtype(0)
    equation = node.attr_str("equation", "").replace(" ", "")
    inputs, arrow, output = equation.partition("->")
    terms = inputs.split(",")
    letters: dict[str, list[Dim]] = {}
    batches: list[ShapeTuple] = []
    for index, term in enumerate(terms):
        shape = node.shape(index)
        if shape is None:
            return Fact(dtype, node.fresh_shape(len(output)) if arrow and "." not in output else None)
        before, dots, after = term.partition("...")
        batch = len(shape) - len(before) - len(after)
        if dots:
            batches.append(shape[len(before) : len(before) + batch])
        sizes = shape[: len(before)] + shape[len(shape) - len(after) :]
        for letter, size in zip(before + after, sizes, strict=True):
            letters.setdefault(letter, []).append(size)
    if not arrow:
        single = [c for c in sorted(letters) if inputs.count(c) == 1 and c in string.ascii_letters]
        output = ("..." if batches else "") + "".join(single)
    before, dots, after = output.partition("...")
    batch_dims = (node.broadcast(batches) or ()) if dots and batches else ()
    dims = [node.broadcast_dim(letters[letter]) for letter in before + after]
    return Fact(dtype, (*dims[: len(before)], *batch_dims, *dims[len(before) :]))
