"""The loss of a model and its gradients as a function of numpy arrays."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

import numpy as np

from graphopt import ir
from graphopt.autodiff.joint_graph import Joint
from graphopt.errors import UsageError, unknown
from graphopt.inputs.run_once import check_dtypes, check_feeds
from graphopt.ir.signature import Signature
from graphopt.ort import preflight, session
from graphopt.ort.devices import CPU, Device
from graphopt.ort.loadable_model import Artifact
from graphopt.ort.session_options import SessionChoice
from graphopt.parameters.lifting import lift
from graphopt.util.ort_array_conversion import native_feeds

#: Converts a joint graph, whose parameters are inputs, into the model to run and its session options.
Prepare = Callable[[ir.Model], tuple[ir.Model, SessionChoice]]


class ValueAndGrad:
    """The loss of a model and its gradients, the result of :func:`graphopt.value_and_grad`.

    Not thread-safe: calls update ``state`` and ``outputs``.

    >>> f = graphopt.value_and_grad("model.onnx", "cross_entropy:logits,labels")     # doctest: +SKIP
    >>> loss, gradients = f({"x": x, "labels": labels})                              # doctest: +SKIP
    >>> for name, gradient in gradients.items():                                     # doctest: +SKIP
    ...     f.parameters[name] -= 0.1 * gradient

    Attributes:
        joint: the joint graph, whose parameters are inputs.
        parameters: the contents of the differentiated parameters by name; each call feeds them.
        state: the running statistics of BatchNormalization in training mode by name; each call updates them.
        outputs: the requested outputs of the last call by name.
    """

    def __init__(
        self,
        joint: Joint,
        device: Device = CPU,
        threads: int | None = None,
        outputs: Iterable[str] = (),
        prepare: Prepare = lambda model: (model, SessionChoice()),
    ) -> None:
        known = [output.name or "" for output in joint.model.graph.outputs]
        self._kept = list(outputs)
        for name in self._kept:
            if name not in known:
                raise unknown("output", name, known)
        if joint.loss is None:
            raise UsageError("a model with cotangent inputs has no loss")
        self.joint, self._loss = joint, joint.loss
        self.parameters = _lifted(joint.model, joint.gradients)
        self.state = _lifted(joint.model, joint.state)
        self._signature = Signature.of(joint.model)
        model, choice = prepare(joint.model)
        self._artifact = Artifact(model)  # keeps the file of a large model alive
        self._session = preflight.create(self._artifact.source, device=device, threads=threads, choice=choice)
        wanted = [
            self._loss,
            *joint.gradients.values(),
            *(joint.state[name] for name in self.state),
            *self._kept,
        ]
        self._names = list(dict.fromkeys(wanted))
        self.outputs: dict[str, np.ndarray] = {}

    def __call__(self, feeds: Mapping[str, Any]) -> tuple[np.ndarray, dict[str, np.ndarray]]:
        """The loss, and the gradients by name, with the shapes and types of the differentiated parameters.

        Args:
            feeds: a numpy array for each input; an array with the name of a parameter replaces the parameter.

        Raises:
            UsageError: an input is missing or unknown.
            RuntimeFailure: onnxruntime can't run the model.
        """
        joint = self.joint
        fed = native_feeds({**self.parameters, **self.state, **feeds})
        check_feeds(fed, self._signature)
        check_dtypes(fed, self._signature)
        found = dict(zip(self._names, session.run(self._session, fed, self._names), strict=True))
        self.state = {name: found[joint.state[name]] for name in self.state}
        self.outputs = {name: found[name] for name in self._kept}
        return found[self._loss], {name: found[output] for name, output in joint.gradients.items()}


def _lifted(model: ir.Model, names: Iterable[str]) -> dict[str, np.ndarray]:
    """Convert the initializers among ``names`` to inputs; returns their contents."""
    own = [name for name in names if name in model.graph.initializers]
    if not own:
        return {}
    return {name: tensor.numpy().copy() for name, tensor in lift(model, own).tensors.items()}
