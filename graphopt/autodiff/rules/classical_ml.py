"""Operators of ai.onnx.ml, the domain of classical machine learning."""

from __future__ import annotations

import numpy as np

from graphopt import ir
from graphopt.autodiff.building_blocks.scatter import scatter_along
from graphopt.autodiff.graph_builder import GraphBuilder
from graphopt.autodiff.primal_node import PrimalNode
from graphopt.autodiff.rule_registry import Cotangents, gradient, non_differentiable

jumps = non_differentiable(
    "ai.onnx.ml::Binarizer",
    "ai.onnx.ml::TreeEnsemble",
    "ai.onnx.ml::TreeEnsembleClassifier",
    "ai.onnx.ml::TreeEnsembleRegressor",
    reason="it is piecewise constant",
)


@gradient("ai.onnx.ml::ArrayFeatureExtractor")
def array_feature_extractor(op: GraphBuilder, node: PrimalNode, dy: ir.Value) -> Cotangents:
    """dy scatter-added at the indices, along the last axis."""
    x, last = node.x, node.rank(node.x) - 1
    picks = op.Reshape(node.input(1), [-1])
    sizes = op.shape(*(op.dim(x, axis) for axis in range(last)), op.dim(picks, 0))
    return scatter_along(op, x, picks, op.reshape(dy, sizes), last)


@gradient("ai.onnx.ml::Scaler")
def scaler(op: GraphBuilder, node: PrimalNode, dy: ir.Value) -> Cotangents:
    """scale dy."""
    return op.cast_like(op.Mul(dy, np.array(node.attribute("scale"), np.float32)), node.x)


@gradient("ai.onnx.ml::Imputer")
def imputer(op: GraphBuilder, node: PrimalNode, dy: ir.Value) -> Cotangents:
    """dy where x is not replaced, otherwise 0."""
    value = node.attribute("replaced_value_float", 0.0)
    replaced = op.IsNaN(node.x) if np.isnan(value) else op.Equal(node.x, float(value))
    return op.only_where(op.Not(replaced), dy)


@gradient("ai.onnx.ml::LinearRegressor")
def linear_regressor(op: GraphBuilder, node: PrimalNode, dy: ir.Value) -> Cotangents:
    """dy C, with the matrix C of coefficients."""
    transform = node.attribute("post_transform", "NONE")
    if transform != "NONE":
        raise node.refusal(f"its post_transform {transform} is not supported")
    coefficients = np.array(node.attribute("coefficients"), np.float32)
    dx = op.MatMul(dy, coefficients.reshape(node.attribute("targets", 1), -1))
    return op.cast_like(op.reshape_like(dx, node.x), node.x)


@gradient("ai.onnx.ml::Normalizer")
def normalizer(op: GraphBuilder, node: PrimalNode, dy: ir.Value) -> Cotangents:
    """(dy - n' Σ y dy) / n, with the norm n of the row and its derivative n'."""
    norm, y = node.attribute("norm", "MAX"), node.y
    x = op.cast_like(node.x, y)
    if norm == "MAX":
        size, _ = op.TopK(x, [1], outputs=2)
        hits = op.cast_like(op.Equal(x, size), x)
        slope = op.Div(hits, op.ReduceSum(hits, [-1], keepdims=1))
    elif norm == "L1":
        size, slope = op.ReduceSum(op.Abs(x), [-1], keepdims=1), op.Sign(x)
    else:
        size, slope = op.Sqrt(op.ReduceSum(op.Mul(x, x), [-1], keepdims=1)), y
    size = op.Where(op.Equal(size, 0.0), op.number(1.0, size), size)  # rows of zeros are not divided
    along = op.ReduceSum(op.Mul(y, dy), [-1], keepdims=1)
    return op.cast_like(op.Div(op.Sub(dy, op.Mul(slope, along)), size), node.x)
