"""The peaks of a machine: the highest measured rates of multiply-adds and copies."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

from graphopt.timing import ratios
from graphopt.util.lazy_dataclass import dataclass

#: The type whose peak applies to operations of other types: of the same width, or converted before.
_COMPARED = {
    "float16": "float", "bfloat16": "float", "int32": "float", "uint32": "float", "int16": "float",
    "uint16": "float", "bool": "float", "int64": "double", "uint64": "double", "uint8": "int8",
}  # fmt: skip
#: Name of the peak of a copy, besides the types of products.
COPY = "copy"


@dataclass(frozen=True)
class Peak:
    """The highest rate of several repetitions, per second.

    Attributes:
        rate: the highest rate.
        typical: the median over repetitions; far below the highest on a busy machine.
        low: the lowest.
        repetitions: their number.
    """

    rate: float
    typical: float
    low: float
    repetitions: int

    @classmethod
    def of(cls, rates: Sequence[float], earlier: Peak | None = None) -> Peak:
        """The peak of the ``rates`` of repetitions, and of an earlier measurement."""
        own = cls(max(rates), ratios.median(list(rates)), min(rates), len(rates))
        if earlier is None:
            return own
        return cls(max(own.rate, earlier.rate), own.typical, own.low, own.repetitions)


@dataclass(frozen=True)
class Peaks:
    """The measured peaks of a machine.

    Attributes:
        flops: operations per second by element type; a multiply-add is two.
        bandwidth: bytes read and written per second by a copy in memory.
        processor: name of the processor.
        level: level of x86-64 instructions; ``None`` for other processors.
        threads: number of threads; ``None`` for onnxruntime's choice.
    """

    flops: Mapping[str, Peak]
    bandwidth: Peak
    processor: str = ""
    level: int | None = None
    threads: int | None = None

    def of_type(self, kind: str) -> float | None:
        """Operations per second for elements of the type ``kind``, by its name in a profile."""
        found = self.flops.get(_COMPARED.get(kind, kind))
        return None if found is None else found.rate

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)
