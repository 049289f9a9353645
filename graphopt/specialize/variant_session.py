"""A session of a variant, ready to run on whatever the whole model takes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from graphopt.errors import RuntimeFailure
from graphopt.runtime import session
from graphopt.runtime.once import check_feeds
from graphopt.runtime.signature import Signature
from graphopt.runtime.values import LOW_TYPES

if TYPE_CHECKING:
    from onnxruntime import InferenceSession


class VariantSession:
    """A session, and what can be known of its runs before they start.

    Attributes:
        session: the session.
        outputs: the names of the outputs.
    """

    def __init__(self, made: InferenceSession, signature: Signature) -> None:
        import onnxruntime

        arguments = [*made.get_inputs(), *made.get_overridable_initializers()]
        results = made.get_outputs()
        taken = {argument.name for argument in arguments}
        self.session = made
        self.outputs = [result.name for result in results]
        self._signature = signature
        self._idle = frozenset(port.name for port in signature.inputs) - taken
        self._plain = all(value.type not in LOW_TYPES for value in (*arguments, *results))
        self._options = onnxruntime.RunOptions()
        self._options.log_severity_level = session.FATAL

    def taken(self, feeds: Mapping[str, Any]) -> dict[str, Any]:
        """``feeds`` without inputs of the whole model that the session does not have."""
        return {name: value for name, value in feeds.items() if name not in self._idle}

    def run(self, feeds: Mapping[str, Any]) -> list[Any]:
        """The outputs; inputs that the session does not have are left out."""
        if self._idle or type(feeds) is not dict:
            feeds = self.taken(feeds)
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
