"""A second judge: ONNX's own reference evaluator."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np
import onnx

from graphopt import ir


class Reference:
    """What a model computes by onnx's reference evaluator, which follows the specification.

    It is slow and knows no vendor domains, so it is asked only where onnxruntime's own result is
    in doubt: on tensors with a dim of size 0 some of its kernels give wrong shapes.

    Args:
        model: gives the model when it is first needed.
    """

    def __init__(self, model: Callable[[], ir.Model]) -> None:
        self._model = model
        self._proto: onnx.ModelProto | None = None
        self._evaluators: dict[str, Any] = {}

    def output(self, name: str, feeds: Mapping[str, Any]) -> Any | None:
        """The output called ``name`` for ``feeds``; ``None`` if the evaluator can't tell."""
        try:
            if name not in self._evaluators:
                from onnx.reference import ReferenceEvaluator

                self._proto = self._proto or ir.to_proto(self._model())
                self._evaluators[name] = ReferenceEvaluator(_part_for(self._proto, name))
            with np.errstate(all="ignore"), warnings.catch_warnings(action="ignore"):
                return self._evaluators[name].run([name], dict(feeds))[0]
        except Exception:  # it raises whatever numpy or its own gaps raise
            return None


def _part_for(proto: onnx.ModelProto, output: str) -> onnx.ModelProto:
    """The model with only the nodes that ``output`` depends on, and only that output."""
    needed = {output}
    kept = []
    for node in reversed(proto.graph.node):
        if not needed.isdisjoint(node.output):
            kept.append(node)
            needed.update(_reads(node))
    part = onnx.ModelProto()
    part.CopyFrom(proto)
    del part.graph.node[:], part.graph.output[:]
    part.graph.node.extend(reversed(kept))
    part.graph.output.extend(info for info in proto.graph.output if info.name == output)
    return part


def _reads(node: onnx.NodeProto) -> Iterator[str]:
    """Every name that ``node`` or a node in its bodies reads."""
    pending = [node]
    while pending:
        current = pending.pop()
        yield from current.input
        for attribute in current.attribute:
            for graph in (attribute.g, *attribute.graphs):
                pending.extend(graph.node)
                yield from (info.name for info in graph.output)
