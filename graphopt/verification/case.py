"""The cases of a verifier, as data: inputs, and the original's outputs for them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import field
from typing import Any

from graphopt.inputs.binding_search import ValidBinding
from graphopt.inputs.feeds import Feeds
from graphopt.inputs.value_generator import Distribution
from graphopt.ir.signature import Signature
from graphopt.process.child import ProcessCrashed
from graphopt.util.lazy_dataclass import dataclass
from graphopt.verification.empty_tensor_faults import Unreliable
from graphopt.verification.output_comparison import Deviation, nbytes
from graphopt.verification.verdict import Row, Skipped


@dataclass
class Case:
    """One set of inputs with the original's outputs.

    Attributes:
        binding: sizes of the dynamic dims, as text.
        distribution: distribution of the inputs.
        feeds: inputs by name.
        off: outputs without onnxruntime's optimizations.
        default: outputs of a default session; ``None`` if the original fails in it.
        noise: per output and tensor, the largest deviation of ``default`` from ``off``.
        drift: per output and tensor, the largest deviation from ``off`` in repeated runs; empty if there were
            none.
        unsteady: indices of outputs whose bits differ in a repeated run; if ``drift`` is 0, these are the
            signs of zeros or the bits of NaN.
        random: indices of outputs that change from run to run by more than the tolerance.
        random_shapes: indices of outputs whose shapes also change.
        varying: indices of outputs that differed in every run. Random numbers that are drawn from few values,
            or in small tensors, may repeat.
        input_sensitivity: per output and tensor, the deviation from ``off`` with differently rounded inputs;
            ``None`` until computed.
        rounding_sensitivity: the same with differently rounded inputs or intermediate results.
        empty: whether a dynamic dim has size 0.
        unreliable: outputs that empty tensors make unreliable; ``None`` until computed.
        repeated: whether the original ran more than once, so that ``random`` is known.
        flaky: whether the original failed in a later run.
        compares_off: whether candidates are compared with ``off``.
    """

    binding: str
    distribution: Distribution
    feeds: Feeds
    off: list[Any]
    default: list[Any] | None
    noise: list[list[float]]
    random: frozenset[int] = frozenset()
    random_shapes: frozenset[int] = frozenset()
    varying: frozenset[int] = frozenset()
    drift: list[list[float]] = field(default_factory=list)
    unsteady: frozenset[int] = frozenset()
    input_sensitivity: list[list[Deviation]] | None = None
    rounding_sensitivity: list[list[Deviation]] | None = None
    empty: bool = False
    unreliable: Unreliable | None = None
    repeated: bool = False
    flaky: bool = False
    compares_off: bool = True

    @property
    def nbytes(self) -> int:
        """Bytes of the feeds and the outputs."""
        return nbytes([*self.feeds.values(), self.off, *([] if self.default is self.off else [self.default])])


@dataclass
class Cases:
    """All cases of one original, and the inputs on which it fails.

    Attributes:
        found: cases with sizes of at least 1.
        skipped: inputs that fail or were not tried, with reasons.
        refusal: the reason why the original runs on no inputs.
        crash: the crash of the process that loaded the original.
        slow: whether no run of the original ended in time.
        valid: bindings that the original accepts.
        is_single: whether only the first case has a default session.
    """

    found: list[Case] = field(default_factory=list)
    skipped: list[Skipped] = field(default_factory=list)
    refusal: str | None = None
    crash: ProcessCrashed | None = None
    slow: bool = False
    valid: list[ValidBinding] = field(default_factory=list)
    is_single: bool = False


def cases_like(cases: Sequence[Case], row: Row | None) -> Sequence[Case]:
    """The cases with the inputs of ``row``; all cases if ``row`` is ``None``."""
    if row is None:
        return cases
    return [case for case in cases if (case.binding, case.distribution) == (row.binding, row.distribution)]


def wrongly_declared(signature: Signature, cases: Sequence[Case]) -> set[str]:
    """Outputs whose shape in ``signature`` contradicts a run of the original."""
    found = set()
    for case in cases:
        for port, value in zip(signature.outputs, case.off, strict=True):
            shape = getattr(value, "shape", None)
            if port.dims is None or shape is None or port.kind != "tensor":
                continue
            pairs = zip(port.dims, shape, strict=False)
            if len(port.dims) != len(shape) or any(
                isinstance(dim, int) and dim != size for dim, size in pairs
            ):
                found.add(port.name)
    return found
