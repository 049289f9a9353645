"""A request to compare a candidate with the original of a verifier."""

from __future__ import annotations

from functools import cached_property

from graphopt import ir
from graphopt.numerics import Numerics
from graphopt.ort.loadable_model import Artifact
from graphopt.util.lazy_dataclass import dataclass
from graphopt.verification.onnx_reference import Reference
from graphopt.verification.verdict import Row


@dataclass(frozen=True)
class ComparisonRequest:
    """A candidate, and the required comparisons.

    Attributes:
        artifact: the candidate.
        numerics, signature, bits, like, libraries: the arguments of
            :meth:`graphopt.verification.verifier.Verifier.verify`.
        is_proven: whether to compare only ordinary inputs, and a sample of others, unless some bit differs.
    """

    artifact: Artifact
    numerics: Numerics
    signature: bool
    bits: bool
    like: Row | None
    libraries: tuple[str, ...]
    is_proven: bool

    @cached_property
    def model(self) -> ir.Model:
        """The candidate as onnxruntime runs it."""
        return self.artifact.corrected()

    @cached_property
    def reference(self) -> Reference:
        """Reference evaluations of the candidate."""
        return Reference(self.artifact.model)
