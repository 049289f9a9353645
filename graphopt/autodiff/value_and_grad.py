"""A loss and its gradients as a function of numpy arrays."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from graphopt.autodiff.joint import Joint
from graphopt.parameters.lifting import lift
from graphopt.runtime import session
from graphopt.runtime.artifact import Artifact
from graphopt.runtime.devices import CPU, Device
from graphopt.runtime.once import check_feeds
from graphopt.runtime.signature import Signature


class ValueAndGrad:
    """The loss of a model and its gradients; made by :func:`graphopt.value_and_grad`.

    >>> f = graphopt.value_and_grad("model.onnx", "cross_entropy:logits,labels")     # doctest: +SKIP
    >>> loss, gradients = f({"x": x, "labels": labels})                              # doctest: +SKIP
    >>> for name, gradient in gradients.items():                                     # doctest: +SKIP
    ...     f.parameters[name] -= 0.1 * gradient

    Attributes:
        joint: the joint graph, whose parameters are inputs.
        parameters: by name, what the parameters that are differentiated by hold; each call feeds them.
    """

    def __init__(self, joint: Joint, device: Device = CPU, threads: int | None = None) -> None:
        own = [name for name in joint.gradients if name in joint.model.graph.initializers]
        lifted = lift(joint.model, own) if own else None
        self.joint = joint
        self.parameters: dict[str, np.ndarray] = {}
        if lifted is not None:
            self.parameters = {name: tensor.numpy().copy() for name, tensor in lifted.tensors.items()}
        self._signature = Signature.of(joint.model)
        self._artifact = Artifact(joint.model)  # holds the file that a large model is read from
        self._session = session.create(self._artifact.source, device=device, threads=threads)

    def __call__(self, feeds: Mapping[str, Any]) -> tuple[np.ndarray, dict[str, np.ndarray]]:
        """The loss, and by name the gradients.

        Args:
            feeds: a numpy array for each input; one called like a parameter takes its place.

        Raises:
            UsageError: an input is missing, or there is none of that name.
            RuntimeFailure: onnxruntime can't run it.
        """
        assert self.joint.loss is not None
        fed = {**self.parameters, **feeds}
        check_feeds(fed, self._signature)
        value, *found = session.run(self._session, fed, [self.joint.loss, *self.joint.gradients.values()])
        return value, dict(zip(self.joint.gradients, found, strict=True))
