"""A session of a variant that accepts the feeds of the whole model."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from graphopt.errors import InvalidModel, RuntimeFailure
from graphopt.inputs.run_once import check_feeds
from graphopt.ir.signature import Signature
from graphopt.ort import session
from graphopt.util.element_types import LOW_TYPES

if TYPE_CHECKING:
    from onnxruntime import InferenceSession


class VariantSession:
    """A session with precomputed run arguments, to keep the overhead of a run low.

    Attributes:
        session: the session.
        outputs: the names of the outputs.
    """

    def __init__(self, session_: InferenceSession, signature: Signature) -> None:
        import onnxruntime

        arguments = [*session_.get_inputs(), *session_.get_overridable_initializers()]
        results = session_.get_outputs()
        own = {argument.name for argument in arguments}
        self.session = session_
        self.outputs = [result.name for result in results]
        self._signature = signature
        self._unused = frozenset(port.name for port in signature.inputs) - own
        self._plain = all(value.type not in LOW_TYPES for value in (*arguments, *results))
        self._options = onnxruntime.RunOptions()
        self._options.log_severity_level = session.FATAL

    def own_feeds(self, feeds: Mapping[str, Any]) -> dict[str, Any]:
        """``feeds`` without inputs of the whole model that the session lacks."""
        return {name: value for name, value in feeds.items() if name not in self._unused}

    def run(self, feeds: Mapping[str, Any]) -> list[Any]:
        """The outputs, in order; ignores feeds of inputs that the session lacks."""
        if self._unused or type(feeds) is not dict:
            feeds = self.own_feeds(feeds)
        try:
            if self._plain:
                found: list[Any] = self.session.run(self.outputs, feeds, self._options)
                return found
            return session.run(self.session, feeds)
        except Exception as error:  # onnxruntime's errors have no common base
            check_feeds(feeds, self._signature)
            if isinstance(error, RuntimeFailure):
                raise
            raise RuntimeFailure(f"onnxruntime failed: {session.explain(error)}") from error


def check_signature(name: str, found: Signature, planned: Signature) -> None:
    """Check that a variant has the outputs of the whole model, and a subset of its inputs.

    Args:
        name: the name of the variant.
        found: its signature.
        planned: the signature of the whole model.

    Raises:
        InvalidModel: the signatures are incompatible.
    """
    types = {port.name: port.type for port in planned.inputs}
    others = [port for port in found.inputs if not _fits(port.type, types.get(port.name))]
    fault = f"input {others[0].name!r} of type {others[0]}" if others else None
    names = [port.name for port in planned.outputs]
    if fault is None and [port.name for port in found.outputs] != names:
        fault = f"outputs {', '.join(port.name for port in found.outputs)} instead of {', '.join(names)}"
    for mine, other in zip(found.outputs, planned.outputs, strict=False):
        if fault is None and not _fits(mine.type, other.type):
            fault = f"output {mine.name!r} of type {mine}"
    if fault is not None:
        raise InvalidModel(
            f"{name} does not match the plan: it has {fault}",
            hint="write the bundle again, or copy all of it again",
        )


def _fits(found: str, planned: str | None) -> bool:
    """Whether types agree; an undeclared type is empty, and agrees with any."""
    return planned is not None and (found == planned or not found or not planned)
