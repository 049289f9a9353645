"""Backward models of graphopt and onnx-ad with a common interface."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx

from graphopt import ir
from graphopt.autodiff.joint_graph import differentiate
from graphopt.autodiff.rule_registry import NoGradient
from graphopt.errors import GraphoptError


class Refused(Exception):
    """The tool refuses a gradient, for the reason in the text."""


class Unloadable(Exception):
    """The tool can't read the model, for the reason in the text."""


@dataclass(frozen=True)
class Adjoint:
    """A model that accepts cotangents of outputs and returns gradients of inputs.

    Attributes:
        data: the serialized model.
        given: by output, the name of the input with its cotangent.
        found: by input, the name of the output that returns its gradient.
        nodes: number of nodes, without Constants.
        stacked: gradients have a further axis of size 1 at the end.
    """

    data: bytes
    given: dict[str, str]
    found: dict[str, str]
    nodes: int
    stacked: bool = False

    def feeds(self, cotangents: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
        """The feeds of the model for given cotangents."""
        return {
            self.given[name]: value[..., None] if self.stacked else value
            for name, value in cotangents.items()
        }

    def gradient(self, value: np.ndarray) -> np.ndarray:
        """A returned gradient, in the shape of the input."""
        return value[..., 0] if self.stacked else value


#: Creates the backward model of outputs with respect to inputs.
Differentiator = Callable[[onnx.ModelProto, Sequence[str], Sequence[str]], Adjoint]


def by_graphopt(model: onnx.ModelProto, outputs: Sequence[str], inputs: Sequence[str]) -> Adjoint:
    """The joint graph."""
    try:
        own = ir.from_proto(model)
    except GraphoptError as error:
        raise Unloadable(str(error)) from error
    try:
        joint = differentiate(own, outputs, inputs)
    except NoGradient as error:
        raise Refused(f"{error.op}: {error.reason}") from error
    except GraphoptError as error:
        raise Refused(error.message) from error
    nodes = sum(node.op_type != "Constant" for node in joint.model.graph.all_nodes())
    return Adjoint(ir.to_bytes(joint.model), joint.cotangents, joint.gradients, nodes)


def by_onnx_ad(model: onnx.ModelProto, outputs: Sequence[str], inputs: Sequence[str]) -> Adjoint:
    """The backward model of onnx-ad (the extra ``peers``)."""
    from onnx_ad import reverse

    try:
        made: Any = reverse(model, inputs=list(inputs), outputs=list(outputs), prefix="adj_", layout="onnx")
    except Exception as error:  # its own, of several kinds
        raise Refused(f"{type(error).__name__}: {error}".splitlines()[0][:120]) from error
    nodes = sum(node.op_type != "Constant" for node in made.graph.node)
    given = {name: f"adj_{name}" for name in outputs}
    return Adjoint(
        made.SerializeToString(), given, {name: f"adj_{name}" for name in inputs}, nodes, stacked=True
    )
