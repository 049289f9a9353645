"""Find outputs that onnxruntime computes wrongly because a tensor in their computation is empty.

If the summed tensor is empty, a few kernels return without writing their outputs, which then contain
uninitialized memory: the final states of a recurrence over a sequence of length 0, or a batch of matrix
products over an axis of length 0. A second run does not reveal this reliably, because the memory may contain
the same bytes. Reductions over negative axes do not reduce the shape of an empty tensor. Therefore the
detection uses the sizes of operands.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from functools import cached_property
from typing import Any

import numpy as np
import onnx
import onnx.helper

from graphopt import ir
from graphopt.errors import ResourceLimit, RuntimeFailure, SystemExhausted
from graphopt.inputs.feeds import Feeds
from graphopt.ops import traits
from graphopt.ort.model_runs import Runner
from graphopt.util.lazy_dataclass import dataclass

#: Operators whose results may be empty for nonempty operands.
_DATA_DEPENDENT = frozenset({"NonZero", "Compress", "Unique", "NonMaxSuppression", "Range", "StringSplit"})


@dataclass(frozen=True)
class Unreliable:
    """Indices of unreliable outputs: only the element type, or only type and shape, are reliable.

    Attributes:
        shapes: outputs that depend on a wrong shape.
        elements: outputs that depend on elements that may be unwritten.
    """

    shapes: frozenset[int] = frozenset()
    elements: frozenset[int] = frozenset()


class EmptyTensors:
    """Detects the outputs of one model that empty tensors make unreliable.

    Args:
        model: returns the model when it is first needed.
        runner: makes a runner for a serialized variant of the model whose outputs are sizes of values.
    """

    def __init__(self, model: Callable[[], ir.Model], runner: Callable[[bytes], Runner]) -> None:
        self._load, self._make = model, runner
        self._sized: dict[str, ir.Value] = {}
        self._runner: Runner | None = None

    @cached_property
    def _model(self) -> ir.Model:
        return self._load()

    @cached_property
    def _suspects(self) -> dict[ir.Node, bool]:
        """The nodes whose results may be wrong, and whether shapes may be wrong, or only elements."""
        kinds = {node: _suspicion(node, self._model.functions) for node in self._model.graph}
        return {node: kind for node, kind in kinds.items() if kind is not None}

    @cached_property
    def data_dependent(self) -> bool:
        """Whether tensors may be empty for nonempty inputs."""
        nodes = (node for graph in ir.graphs_of(self._model) for node in graph)
        return any(node.domain == "" and node.op_type in _DATA_DEPENDENT for node in nodes)

    def unreliable(self, feeds: Feeds) -> Unreliable:
        """The unreliable outputs for ``feeds``; none if the sizes can't be determined."""
        if not self._suspects:
            return Unreliable()
        sizes = self._sizes(feeds)
        shapes, elements = set[ir.Value](), set[ir.Value]()
        for node in self._model.graph:
            reads = list(ir.reads(node))
            if node in self._suspects and any(sizes.get(value) == 0 for value in reads):
                if self._suspects[node]:
                    shapes |= set(node.outputs)
                elements |= {value for value in node.outputs if sizes.get(value, 0) > 0}
            if any(value in shapes for value in reads):
                shapes |= set(node.outputs)
            if not traits.reads_only_shape(node) and any(value in elements for value in reads):
                elements |= set(node.outputs)
        outputs = self._model.graph.outputs
        return Unreliable(
            frozenset(index for index, value in enumerate(outputs) if value in shapes),
            frozenset(index for index, value in enumerate(outputs) if value in elements),
        )

    def _values(self) -> Iterator[ir.Value]:
        """The inputs and outputs of the suspects."""
        for node in self._suspects:
            yield from ir.reads(node)
            yield from node.outputs

    def _sizes(self, feeds: Feeds) -> Mapping[ir.Value, int]:
        """The known numbers of elements of the inputs and outputs of the suspects."""
        known: dict[ir.Value, int] = {}
        for value in self._values():
            tensor = ir.constant_of(value)
            if tensor is not None:
                known[value] = tensor.size
            elif value.name in feeds and hasattr(feeds[value.name], "size"):
                known[value] = int(feeds[value.name].size)
        if self._runner is None:
            self._runner = self._make(self._with_sizes(known))
        try:
            found = self._runner.run("off", feeds) if self._sized else []
        except SystemExhausted:
            raise
        except (RuntimeFailure, ResourceLimit):
            return known
        return known | {value: int(size) for value, size in zip(self._sized.values(), found, strict=True)}

    def _with_sizes(self, known: Mapping[ir.Value, int]) -> bytes:
        """The model with the sizes of all values that are not ``known`` as its only outputs."""
        proto = onnx.ModelProto.FromString(ir.to_bytes(self._model))
        inside = {value for node in self._model.graph for value in node.outputs}
        for value in self._values():
            if value.name and value in inside and value not in known and _is_tensor(value):
                self._sized.setdefault(f"graphopt.size.{value.name}", value)
        del proto.graph.output[:]
        for name, value in self._sized.items():
            proto.graph.node.append(onnx.helper.make_node("Size", [value.name or ""], [name]))
            proto.graph.output.append(onnx.helper.make_tensor_value_info(name, onnx.TensorProto.INT64, []))
        return proto.SerializeToString()


def _is_tensor(value: ir.Value) -> bool:
    return value.type is None or isinstance(value.type, ir.TensorType)


def _suspicion(node: ir.Node, functions: Mapping[Any, ir.Function]) -> bool | None:
    """Whether the shapes of ``node``'s outputs may be wrong, or only their elements; ``None`` for neither.

    For a node with bodies or a call, the nodes inside determine the result. Operators of other domains may
    leave all outputs unwritten.
    """
    function = functions.get(node.op_identifier())
    bodies = [function] if function is not None else ir.bodies(node)
    kinds = [kind for body in bodies for inner in body if (kind := _suspicion(inner, functions)) is not None]
    if function is None:
        if traits.reduces(node) and _may_be_negative(node):
            kinds.append(True)
        elif node.domain not in ("", "ai.onnx.ml") or node.op_type in traits.COMPUTE_BOUND:
            kinds.append(False)
    return any(kinds) if kinds else None


def _may_be_negative(node: ir.Node) -> bool:
    """Whether a reduction's axes count from the end."""
    for name in ("axes", "axis"):
        attribute = node.attributes.get(name)
        if attribute is not None:
            return attribute.is_ref() or bool((np.asarray(attribute.value) < 0).any())
    if len(node.inputs) < 2 or node.inputs[1] is None:
        return False
    tensor = ir.constant_of(node.inputs[1])
    return tensor is None or bool((tensor.numpy() < 0).any())
