"""Normalizations: the shape of the input, and the statistics."""

from __future__ import annotations

from graphopt import ir
from graphopt.analysis.shape_inference.node_facts import NodeFacts, shape_rule
from graphopt.analysis.shape_inference.value_facts import Fact


@shape_rule(
    *("GroupNormalization", "InstanceNormalization", "LRN", "LpNormalization", "MeanVarianceNormalization")
)
def normalization(node: NodeFacts) -> Fact:
    """Shape and dtype of the first input."""
    return node.like(0)


@shape_rule("BatchNormalization")
def batch_normalization(node: NodeFacts) -> list[Fact]:
    """Y, and in training mode the statistics, with one number per channel."""
    statistics = [node.like(index) for index in (3, 4, 3, 4)]
    return [node.like(0), *statistics]


@shape_rule("LayerNormalization", "SimplifiedLayerNormalization")
def layer_normalization(node: NodeFacts) -> list[Fact]:
    """Y, then mean and inverse deviation of type ``stash_type``, whose dims from ``axis`` on are 1.

    onnxruntime accepts an input and a scale of different dtypes: Y has the dtype of the scale. Its
    operator SimplifiedLayerNormalization, in the standard domain, returns only the inverse deviation.
    """
    shape, dtype = node.shape(0), node.dtype(1)
    stash = ir.DataType(node.attr_int("stash_type", 1))
    if shape is None:
        return [Fact(dtype), Fact(stash), Fact(stash)]
    axis = node.axis(len(shape), -1)
    reduced = shape[:axis] + (1,) * (len(shape) - axis)
    return [Fact(dtype, shape), Fact(stash, reduced), Fact(stash, reduced)]


@shape_rule("RMSNormalization")
def rms_normalization(node: NodeFacts) -> Fact:
    """The output has the dtype of the scale."""
    return node.like(0, node.dtype(1))
