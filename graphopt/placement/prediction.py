"""A predicted placement: nodes with their providers, and copies between memories."""

from __future__ import annotations

from enum import Enum
from typing import Any

from graphopt.util.lazy_dataclass import dataclass


class Cause(Enum):
    """The reason for a node on the CPU."""

    NO_OPERATOR = "no kernel of the operator"
    NO_VERSION = "no kernel of the version"
    NO_TYPE = "no kernel of the type"
    ATTRIBUTES = "attributes refused"
    SIZES = "computes with sizes"


@dataclass(frozen=True)
class NodePlacement:
    """The provider of one node.

    Attributes:
        node: the name of the node, or of its first output.
        op_type, domain: its operator.
        cause: the reason for a node on the CPU; ``None`` for a node on the device.
        reason: the explanation of the cause, with the version, type or attribute.
        remedy: a change that moves the node to the device, if one is known.
        origins: names of the nodes in the given model that the node originates from.
    """

    node: str
    op_type: str
    domain: str
    cause: Cause | None = None
    reason: str | None = None
    remedy: str | None = None
    origins: tuple[str, ...] = ()

    @property
    def on_device(self) -> bool:
        """Whether the node runs on the device."""
        return self.cause is None

    def to_dict(self) -> dict[str, Any]:
        """As JSON."""
        return {
            "node": self.node,
            "op": f"{self.domain}.{self.op_type}" if self.domain else self.op_type,
            "cause": None if self.cause is None else self.cause.value,
            "reason": self.reason,
            "remedy": self.remedy,
            "origins": list(self.origins),
        }


@dataclass(frozen=True)
class Copy:
    """A copy of a tensor between the memories of the device and of the host: a Memcpy node.

    Attributes:
        tensor: the name of the tensor.
        to_host: whether it is copied to the host, otherwise to the device.
        producer: the node that computes the tensor; ``None`` for an input.
        readers: the nodes that read the copy.
        host_readers: for an input, the nodes that read it in host memory.
    """

    tensor: str
    to_host: bool
    producer: str | None
    readers: tuple[str, ...]
    host_readers: tuple[str, ...] = ()

    @property
    def op_type(self) -> str:
        """onnxruntime's operator."""
        return "MemcpyToHost" if self.to_host else "MemcpyFromHost"

    def to_dict(self) -> dict[str, Any]:
        """As JSON."""
        return {
            "tensor": self.tensor,
            "op": self.op_type,
            "producer": self.producer,
            "readers": list(self.readers),
            "host_readers": list(self.host_readers),
        }


@dataclass(frozen=True)
class Prediction:
    """The predicted placement of a model.

    Attributes:
        version: the release of onnxruntime whose kernels it is based on.
        nodes: all nodes, without Constant nodes, in execution order; the nodes of a body before its owner.
        copies: the copies, by graph.
    """

    version: str
    nodes: tuple[NodePlacement, ...]
    copies: tuple[Copy, ...]

    @property
    def on_cpu(self) -> tuple[NodePlacement, ...]:
        """The nodes on the CPU."""
        return tuple(node for node in self.nodes if not node.on_device)

    def to_dict(self) -> dict[str, Any]:
        """As JSON: the nodes on the CPU, the copies, and the number of all nodes."""
        return {
            "onnxruntime": self.version,
            "nodes": len(self.nodes),
            "on_cpu": [node.to_dict() for node in self.on_cpu],
            "copies": [copy.to_dict() for copy in self.copies],
        }
