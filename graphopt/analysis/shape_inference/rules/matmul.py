"""Matrix products and Einsum."""

from __future__ import annotations

import string

from graphopt import ir
from graphopt.analysis.shape_inference.facts import Fact, ShapeTuple
from graphopt.analysis.shape_inference.node import NodeFacts, shape_rule
from graphopt.analysis.symbolic import Dim


def matmul_shape(given: NodeFacts, a: ShapeTuple | None, b: ShapeTuple | None) -> ShapeTuple | None:
    """The shape of ``numpy.matmul``."""
    if a is None or b is None:
        return None
    rows, columns = a[-2:-1], b[-1:]
    if len(a) == 1:
        rows = ()
    if len(b) == 1:
        columns = ()
    batch = given.broadcast([a[:-2], b[:-2]])
    return (*(batch or ()), *rows, *columns)


@shape_rule("MatMul")
def matmul(given: NodeFacts) -> Fact:
    return Fact(given.dtype(0), matmul_shape(given, given.shape(0), given.shape(1)))


@shape_rule("MatMulInteger")
def matmul_integer(given: NodeFacts) -> Fact:
    return Fact(ir.DataType.INT32, matmul_shape(given, given.shape(0), given.shape(1)))


@shape_rule("QLinearMatMul")
def qlinear_matmul(given: NodeFacts) -> Fact:
    """The dtype is that of the output's zero point."""
    return Fact(given.dtype(7), matmul_shape(given, given.shape(0), given.shape(3)))


@shape_rule("Gemm")
def gemm(given: NodeFacts) -> Fact:
    """The product of two matrices, each perhaps transposed."""
    a, b = given.shape(0), given.shape(1)
    rows: Dim = given.fresh() if a is None else a[1 if given.attr_int("transA", 0) else 0]
    columns: Dim = given.fresh() if b is None else b[0 if given.attr_int("transB", 0) else 1]
    return Fact(given.dtype(0), (rows, columns))


@shape_rule("Einsum")
def einsum(given: NodeFacts) -> Fact:
    """The dims of a letter broadcast together; an ellipsis stands for batch dims."""
    dtype = given.dtype(0)
    equation = given.attr_str("equation", "").replace(" ", "")
    inputs, arrow, output = equation.partition("->")
    terms = inputs.split(",")
    letters: dict[str, list[Dim]] = {}
    batches: list[ShapeTuple] = []
    for index, term in enumerate(terms):
        shape = given.shape(index)
        if shape is None:
            return Fact(dtype, given.fresh_shape(len(output)) if arrow and "." not in output else None)
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
    batch_dims = (given.broadcast(batches) or ()) if dots and batches else ()
    dims = [given.broadcast_dim(letters[letter]) for letter in before + after]
    return Fact(dtype, (*dims[: len(before)], *batch_dims, *dims[len(before) :]))
