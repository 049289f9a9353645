"""Figures about a model: operators, weights, versions, interface."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import asdict
from typing import Any

from graphopt import ir
from graphopt.ir.signature import Port, Signature
from graphopt.util.lazy_dataclass import dataclass


@dataclass(frozen=True)
class Summary:
    """Figures about a model.

    Attributes:
        nodes: number of nodes of the graph and its bodies, without Constant.
        ops: number of nodes by operator (``domain::Op`` outside ai.onnx), most frequent first.
        constants: number of Constant nodes.
        function_nodes: number of nodes in local functions.
        parameters: number of elements of all weights (initializers and Constant nodes), tied weights counted
            once.
        weight_bytes: size of the weights in bytes.
    """

    nodes: int
    ops: dict[str, int]
    constants: int
    functions: int
    function_nodes: int
    parameters: int
    weight_bytes: int

    @classmethod
    def of(cls, model: ir.Model) -> Summary:
        """Compute the figures of ``model``."""
        ops = Counter(op_name(node.domain, node.op_type) for node in ir.walk_nodes(model.graph))
        constants = ops.pop("Constant", 0)
        inside = sum(ir.count_nodes(function.graph) for function in model.functions.values())
        sizes = [_size(tensor) for tensor in weights(model)]
        return cls(
            nodes=sum(ops.values()),
            ops=dict(sorted(ops.items(), key=lambda item: (-item[1], item[0]))),
            constants=constants,
            functions=len(model.functions),
            function_nodes=inside,
            parameters=sum(elements for elements, _ in sizes),
            weight_bytes=sum(nbytes for _, nbytes in sizes),
        )

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)


@dataclass(frozen=True)
class Interface:
    """The interface and metadata of a model, which no pass may change."""

    signature: Signature
    opsets: dict[str, int]
    ir_version: int
    metadata: dict[str, str]

    @classmethod
    def of(cls, model: ir.Model) -> Interface:
        """The interface of ``model``."""
        return cls(
            Signature.of(model),
            {domain or "ai.onnx": version for domain, version in sorted(model.graph.opset_imports.items())},
            model.ir_version,
            dict(model.metadata_props),
        )

    @property
    def symbols(self) -> list[str]:
        """The dynamic dims of the inputs in order of appearance, unnamed dims as ``x@0``."""
        dims = [dim for port in self.signature.inputs for dim in port.named_dims]
        return list(dict.fromkeys(dim for dim in dims if not isinstance(dim, int)))

    def ports(self, role: str) -> list[Port]:
        """The inputs with this role."""
        return [port for port in self.signature.inputs if port.role == role]

    def to_dict(self) -> dict[str, Any]:
        return {
            "inputs": [asdict(port) for port in self.signature.inputs],
            "outputs": [asdict(port) for port in self.signature.outputs],
            "dynamic_dims": self.symbols,
            "opsets": self.opsets,
            "ir_version": self.ir_version,
            "metadata": self.metadata,
        }


def weights(model: ir.Model) -> Iterator[ir.TensorProtocol]:
    """The tensors of initializers and Constant nodes in ``model``, tied tensors once."""
    visited = set()
    for graph in ir.graphs_of(model):
        for tensor in _tensors(graph):
            storage = ir.storage_of(tensor)
            if storage not in visited:
                visited.add(storage)
                yield tensor


def _size(tensor: ir.TensorProtocol) -> tuple[int, int]:
    """The numbers of elements and of bytes; onnx-ir computes the shape again for each."""
    elements = tensor.size
    if tensor.dtype == ir.DataType.STRING:
        return elements, tensor.nbytes
    return elements, -(-elements * tensor.dtype.bitwidth // 8)


def external_bytes(model: ir.Model) -> dict[str, int]:
    """The number of bytes that the model references in each file of external data."""
    sizes: Counter[str] = Counter()
    for tensor in weights(model):
        if isinstance(tensor, ir.ExternalTensor):
            sizes[str(tensor.path)] += tensor.nbytes
    return dict(sizes)


def _tensors(graph: ir.Graph) -> Iterator[ir.TensorProtocol]:
    for value in graph.initializers.values():
        if value.const_value is not None:
            yield value.const_value
    for node in graph:
        if node.op_type == "Constant" and node.domain == "":
            attribute = node.attributes.get("value")
            if attribute is not None and attribute.type == ir.AttributeType.TENSOR and not attribute.is_ref():
                yield attribute.value


def op_name(domain: str, op_type: str) -> str:
    """``Conv``, or ``domain::Op`` outside ai.onnx."""
    return f"{domain}::{op_type}" if domain else op_type
