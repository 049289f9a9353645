"""Operators of ai.onnx.ml."""

from __future__ import annotations

from functools import partial

from graphopt import ir
from graphopt.analysis.shape_inference.node_facts import NodeFacts, shape_rule
from graphopt.analysis.shape_inference.value_facts import Fact
from graphopt.analysis.symbolic import Dim, product

ml_rule = partial(shape_rule, domain="ai.onnx.ml")


@ml_rule("Binarizer", "Imputer")
def like_input(node: NodeFacts) -> Fact:
    return node.like(0)


@ml_rule("Normalizer", "Scaler")
def as_floats(node: NodeFacts) -> Fact:
    return node.like(0, ir.DataType.FLOAT)


@ml_rule("LinearRegressor", "SVMRegressor", "TreeEnsembleRegressor")
def regressor(node: NodeFacts) -> Fact:
    """A row of targets for each row of the input."""
    name = "n_targets" if node.ir.op_type == "TreeEnsembleRegressor" else "targets"
    return Fact(ir.DataType.FLOAT, (_rows(node), node.attr_int(name, 1)))


@ml_rule("LinearClassifier", "SVMClassifier", "TreeEnsembleClassifier")
def classifier(node: NodeFacts) -> list[Fact]:
    """A label and a row of scores for each row of the input."""
    names = node.attr("classlabels_strings")
    label = ir.DataType.STRING if names is not None and names.value else ir.DataType.INT64
    rows = _rows(node)
    return [Fact(label, (rows,)), Fact(ir.DataType.FLOAT, (rows, node.fresh("classes")))]


def _rows(node: NodeFacts) -> Dim:
    """The rows of the input; a vector is one row."""
    shape = node.shape(0)
    if shape is None:
        return node.fresh("rows")
    return shape[0] if len(shape) > 1 else 1


@ml_rule("ArrayFeatureExtractor")
def array_feature_extractor(node: NodeFacts) -> Fact:
    """The columns at the indices of the second input; for a vector, one row."""
    shape, picks = node.shape(0), node.shape(1)
    if shape is None or not shape:
        return Fact(node.dtype(0))
    columns: Dim = node.fresh("columns") if picks is None else product(picks)
    return Fact(node.dtype(0), (*(shape[:-1] or (1,)), columns))
