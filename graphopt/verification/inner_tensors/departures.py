"""The result of a comparison of inner tensors: departures, errors by depth, and non-finite values."""

from __future__ import annotations

import bisect
import math
from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Any

from graphopt import ir
from graphopt.util.lazy_dataclass import dataclass
from graphopt.verification.inner_tensors.matched_values import MatchedValues
from graphopt.verification.inner_tensors.tensor_comparison import TensorError

#: Upper limits of the relative errors in the bins of the histogram, after the bin of identical tensors.
ERROR_BINS = (1e-7, 1e-6, 1e-5, 1e-4, 1e-3, 1e-2)
#: Maximum number of ranges of depths in the histogram.
_RANGES = 10


@dataclass(frozen=True)
class ComparedTensor:
    """The comparison of one tensor.

    Attributes:
        pair: the matched values.
        depth: the number of nodes on the longest path to the value in model A.
        kind: type and shape in A, such as ``f32[2, 16]``.
        error: their difference.
    """

    pair: MatchedValues
    depth: int
    kind: str
    error: TensorError

    @property
    def name(self) -> str:
        """The name of the value in A."""
        return self.pair.a.name or ""

    def to_dict(self) -> dict[str, Any]:
        """The comparison for JSON."""
        error = self.error
        node, twin = self.pair.a.producer(), self.pair.b.producer()
        return {
            "name": self.name,
            "name_in_b": self.pair.b.name,
            "matched_by": "name" if self.pair.a.name == self.pair.b.name else "origin",
            "node": None if node is None else ir.label(node),
            "op_type": None if node is None else node.op_type,
            "node_in_b": None if twin is None else ir.label(twin),
            "op_type_in_b": None if twin is None else twin.op_type,
            "depth": self.depth,
            "type": self.kind,
            "largest_error": _finite(error.largest),
            "relative_error": _finite(error.relative),
            "identical": error.is_identical,
            "departs": error.reason is not None,
            "reason": error.reason,
        }


@dataclass(frozen=True)
class DepthRange:
    """The errors of the tensors in a range of depths.

    Attributes:
        first, last: the range, both inclusive.
        identical: the number of tensors with equal bits.
        bins: the numbers of other tensors by relative error: one bin for each limit of :data:`ERROR_BINS`,
            and one above the last limit.
        departed: the number of departed tensors.
        largest: the largest relative error.
    """

    first: int
    last: int
    identical: int
    bins: tuple[int, ...]
    departed: int
    largest: float

    def to_dict(self) -> dict[str, Any]:
        """The range for JSON."""
        return {
            "depths": [self.first, self.last],
            "identical": self.identical,
            "bins": list(self.bins),
            "departed": self.departed,
            "largest_relative_error": _finite(self.largest),
        }


@dataclass(frozen=True)
class NonFinite:
    """The first value of a model that contains a NaN or an infinity: name, node, and number of elements."""

    value: str
    node: str
    count: int

    def to_dict(self) -> dict[str, Any]:
        """The value for JSON."""
        return {"value": self.value, "node": self.node, "count": self.count}


@dataclass(frozen=True)
class TensorComparison:
    """The result.

    Attributes:
        graph: the main graph of A.
        tensors: the compared tensors, in the topological order of A.
        unmatched: the numbers of unmatched values of A and of B.
        lost: the number of matched values that are missing after onnxruntime's optimizations of a session.
        random: the number of matched values that depend on random numbers, which are not compared.
        nonfinite: the first values with ``nan`` and ``inf``, by model (``a``, ``b``).
        chunks: the numbers of chunks of A and B.
        inputs: the types of the inputs, by name.
        peak_bytes: the peak memory of the processes that ran models.
    """

    graph: ir.Graph
    tensors: tuple[ComparedTensor, ...]
    unmatched: tuple[int, int]
    lost: int
    random: int
    nonfinite: Mapping[str, Mapping[str, NonFinite]]
    chunks: tuple[int, int]
    inputs: Mapping[str, str]
    peak_bytes: int = 0

    @cached_property
    def departed(self) -> tuple[ComparedTensor, ...]:
        """The departed tensors, in order.

        A tensor that is matched only by its origin may be a different part of an expression. Its departure
        counts only if a tensor that is matched by name and depends on it departs, too.
        """
        wrong = [one for one in self.tensors if one.error.reason is not None]
        sure = [one.pair.a for one in wrong if one.pair.is_sure]
        before = _ancestors(sure)
        return tuple(one for one in wrong if one.pair.is_sure or one.pair.a in before)

    @property
    def first(self) -> ComparedTensor | None:
        """The first tensor that departs."""
        return self.departed[0] if self.departed else None

    @cached_property
    def sources(self) -> tuple[ComparedTensor, ...]:
        """The departed tensors that do not depend on another departed tensor."""
        compared = {one.pair.a: None for one in self.tensors}
        departed = {one.pair.a: one for one in self.departed}
        tainted: dict[ir.Value, bool] = {}
        found = []
        for node in self.graph:
            is_tainted = any(tainted.get(value, False) for value in ir.reads(node))
            for value in node.outputs:
                if value in departed and not is_tainted:
                    found.append(departed[value])
                tainted[value] = value in departed if value in compared else is_tainted
        return tuple(found)

    @property
    def is_equal(self) -> bool:
        """Whether no tensor departs."""
        return not self.departed

    def histogram(self) -> list[DepthRange]:
        """The errors by depth."""
        if not self.tensors:
            return []
        deepest = max(one.depth for one in self.tensors)
        width = math.ceil((deepest + 1) / _RANGES)
        departed = {one.name: None for one in self.departed}
        found = []
        for first in range(0, deepest + 1, width):
            inside = [one for one in self.tensors if first <= one.depth < first + width]
            if inside:
                found.append(_depth_range(first, min(first + width - 1, deepest), inside, departed))
        return found

    def to_dict(self) -> dict[str, Any]:
        """The result for JSON."""
        return {
            "equal": self.is_equal,
            "first": None if self.first is None else self.first.to_dict(),
            "sources": [one.name for one in self.sources],
            "departed": len(self.departed),
            "compared": len(self.tensors),
            "identical": sum(one.error.is_identical for one in self.tensors),
            "unmatched": dict(zip("ab", self.unmatched, strict=True)),
            "lost_in_optimizations": self.lost,
            "random": self.random,
            "nonfinite": {
                side: {kind: one.to_dict() for kind, one in found.items()}
                for side, found in self.nonfinite.items()
            },
            "inputs": dict(self.inputs),
            "error_bins": list(ERROR_BINS),
            "histogram": [one.to_dict() for one in self.histogram()],
            "chunks": dict(zip("ab", self.chunks, strict=True)),
            "peak_bytes": self.peak_bytes,
            "tensors": [one.to_dict() for one in self.tensors],
        }


def depths_of(graph: ir.Graph) -> dict[ir.Value, int]:
    """The number of nodes on the longest path to each result of ``graph``."""
    found: dict[ir.Value, int] = {}
    for node in graph:
        depth = 1 + max((found.get(value, 0) for value in ir.reads(node)), default=0)
        found |= dict.fromkeys(node.outputs, depth)
    return found


def _depth_range(
    first: int, last: int, tensors: Sequence[ComparedTensor], departed: Mapping[str, None]
) -> DepthRange:
    counts = [0] * (len(ERROR_BINS) + 1)
    for one in tensors:
        if not one.error.is_identical:
            counts[bisect.bisect_left(ERROR_BINS, one.error.relative)] += 1
    return DepthRange(
        first,
        last,
        sum(one.error.is_identical for one in tensors),
        tuple(counts),
        sum(one.name in departed for one in tensors),
        max(one.error.relative for one in tensors),
    )


def _ancestors(values: Sequence[ir.Value]) -> dict[ir.Value, None]:
    """The values that one of ``values`` depends on."""
    pending = list(values)
    found: dict[ir.Value, None] = {}
    while pending:
        node = pending.pop().producer()
        for value in () if node is None else ir.reads(node):
            if value not in found:
                found[value] = None
                pending.append(value)
    return found


def _finite(number: float) -> float | None:
    """``number`` for JSON, in which infinities are not representable."""
    return number if math.isfinite(number) else None
