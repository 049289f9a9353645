"""Decide how many sessions of a model fit into memory, and at which optimization levels."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import field

from graphopt import ir
from graphopt.ort.loadable_model import MAPPED_BYTES
from graphopt.ort.model_runs import SessionMemory
from graphopt.process import memory
from graphopt.util.lazy_dataclass import dataclass
from graphopt.util.text_tables import human_bytes
from graphopt.verification.verdict import Skipped

#: Memory of a default session, in multiples of the bytes of its weights: it repacks weights, or converts
#: half-precision ones to float32.
_SESSION = 2
#: Memory of a run without optimizations, in multiples of the bytes of the widest weight as float32: kernels
#: convert other types at run time, and the next weight may be converted while one is in use. Measured: 1.0
#: for whole models of half precision; parts of decoders of 13 GB exceed 1.5.
_WIDEST = 2
#: Memory of a session without optimizations, in multiples of the bytes of weights in the serialized model,
#: which exist twice while the session is created.
_EMBEDDED = 2
#: Share of the available memory that sessions may use. Results of runs and other processes need the rest.
_SHARE = 0.8
#: Bytes of a session and its runs in addition to weights: half of that is measured for small models.
_BASE = 48 << 20
#: Further bytes under limits that count reserved memory: stacks of threads and unused parts of mappings.
_RESERVED = 80 << 20
_HALVES = (ir.DataType.FLOAT16, ir.DataType.BFLOAT16)


@dataclass(frozen=True)
class Weights:
    """The bytes of weights that determine the memory of a session.

    Attributes:
        total: all weights.
        packable: weights that a session without optimizations may copy for faster kernels. Kernels convert
            half-precision weights at run time instead.
        widest: the largest weight, as float32 if its elements are narrower.
        embedded: weights that are part of the serialized model, and not mapped.
    """

    total: int
    packable: int
    widest: int
    embedded: int

    @classmethod
    def of(cls, tensors: Iterable[ir.TensorProtocol], *, is_part: bool = False) -> Weights:
        """The bytes of ``tensors``, the weights of a whole model or of a part.

        Whole models up to a size are serialized; parts refer to the data files of their models.
        """
        known = list(tensors)
        total = sum(tensor.nbytes for tensor in known)
        if is_part:
            embedded = sum(tensor.nbytes for tensor in known if not isinstance(tensor, ir.ExternalTensor))
        else:
            embedded = total if total < MAPPED_BYTES else 0
        return cls(
            total,
            sum(tensor.nbytes for tensor in known if tensor.dtype not in _HALVES),
            max((max(tensor.nbytes, 4 * tensor.size) for tensor in known), default=0),
            embedded,
        )

    @property
    def off_bytes(self) -> int:
        """Anonymous memory of a session without optimizations and of its runs."""
        return _BASE + int(_WIDEST * self.widest) + _EMBEDDED * self.embedded

    @property
    def mapped_bytes(self) -> int:
        """Memory of this session under limits that also count mappings and reserved memory."""
        return self.total + self.off_bytes + _RESERVED


@dataclass(frozen=True)
class Room:
    """Memory for the sessions of one process.

    Attributes:
        anonymous: bytes of anonymous memory.
        mapped: bytes of anonymous memory and of mapped weights; ``None`` if mapped weights do not count.
    """

    anonymous: int
    mapped: int | None = None

    def fits(self, weights: Weights) -> bool:
        """Whether a session without optimizations fits."""
        return weights.off_bytes <= self.anonymous and (
            self.mapped is None or weights.mapped_bytes <= self.mapped
        )

    def prepacks(self, weights: Weights) -> bool:
        """Whether it may also copy weights for faster kernels."""
        return weights.packable + weights.off_bytes <= self.anonymous


@dataclass(frozen=True)
class MemoryPlan:
    """Memory limits of processes with sessions.

    Attributes:
        limit: bytes of memory of a process; ``None`` for no limit.
        is_scarce: whether ``limit`` is a share of the available memory.
        sessions: the use of memory by sessions; with ``is_single``, only one process with one session may be
            alive at a time.
        refusal: the reason, if not even one session without optimizations fits.
        room: memory for sessions; ``None`` if unknown.
    """

    limit: int | None = None
    sessions: SessionMemory = field(default_factory=SessionMemory)
    refusal: str | None = None
    room: Room | None = None
    is_scarce: bool = False

    @property
    def left_out(self) -> list[Skipped]:
        """The comparisons that are skipped because memory does not suffice."""
        if self.sessions.off_only is not None:
            return [Skipped("default sessions", "memory", self.sessions.off_only)]
        if self.sessions.is_single:
            return [Skipped("further default sessions", "memory", "one session fits at a time")]
        return []

    @classmethod
    def of(
        cls,
        model: ir.Model,
        limit: int | None,
        available: int | None = None,
        mappings: int | None = None,
    ) -> MemoryPlan:
        """The plan for sessions of ``model`` and of its optimized form.

        Args:
            limit: bytes of memory of a process in addition to the weights; ``None`` for no limit.
            available: bytes of available memory; by default as reported by the system.
            mappings: bytes that limits leave to private memory and mapped weights together; by default as
                reported by the system, if ``available`` is.
        """
        values = [value for graph in model.graphs() for value in graph.initializers.values()]
        weights = Weights.of(value.const_value for value in values if value.const_value is not None)
        bound = None if limit is None else max(limit, memory.SESSION_BYTES) + 3 * weights.total
        if available is None:
            available, mappings = memory.available(), memory.counted_mappings()
        if available is None:
            return cls(bound)
        room = Room(int(_SHARE * available), mappings)
        is_scarce = bound is None or room.anonymous < bound
        bound = room.anonymous if bound is None else min(bound, room.anonymous)
        bound += weights.total  # the limit also counts mapped weights
        needed = _SESSION * weights.total + _BASE
        sizes = _sizes(needed / _SHARE, available)
        if needed > room.anonymous and weights.total:
            sessions = SessionMemory(True, room.prepacks(weights), f"a default session {sizes}")
            if room.fits(weights):
                return cls(bound, sessions, room=room, is_scarce=is_scarce)
            sizes = _sizes(weights.off_bytes / _SHARE, available)
            if mappings is not None and weights.off_bytes <= room.anonymous:
                sizes = _sizes(weights.mapped_bytes, mappings)
            return cls(bound, sessions, f"running it {sizes}", room, is_scarce)
        # original and candidate, each without and with optimizations
        together = 2 * (1 + _SESSION) * weights.total + 2 * _BASE
        return cls(bound, SessionMemory(together > room.anonymous), room=room, is_scarce=is_scarce)


def _sizes(needed: float, available: int) -> str:
    return f"needs about {human_bytes(int(needed))} of memory, {human_bytes(available)} available"
