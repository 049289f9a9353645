"""The results of races of kernels in the store, by everything that they depend on."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Mapping

from graphopt.errors import ResourceLimit
from graphopt.tuning.call_subjects import CallSubject
from graphopt.tuning.measurements import Measurement
from graphopt.tuning.race_kernels import RaceResult
from graphopt.util.disk_store import Store, key_of
from graphopt.util.lazy_dataclass import dataclass

#: Kind of the entries in the store, and version of the entries and of the races.
_KIND, _FORMAT = "races", 1


@dataclass(frozen=True)
class StoredRaces:
    """The results of races under fixed circumstances.

    Attributes:
        where: device, runtime, processor, number of threads, compiler and CPU level.
        sources: the source of the kernel of each group.
        fresh: whether stored results are ignored.
    """

    store: Store
    where: str
    sources: Mapping[str, str]
    fresh: bool = False

    def recall(self, subject: CallSubject) -> RaceResult | None:
        """The stored result; ``None`` without a readable result."""
        data = None if self.fresh else self.store.get(_KIND, self._key(subject))
        if data is None:
            return None
        try:
            found = json.loads(data)
            measurement = Measurement.from_dict(found["measurement"])
            seconds = {str(name): float(value) for name, value in found["seconds"].items()}
        except (ValueError, KeyError, TypeError, AttributeError):
            self.store.remove(_KIND, self._key(subject))
            return None
        return RaceResult(measurement, seconds, is_stored=True)

    def keep(self, subject: CallSubject, result: RaceResult) -> None:
        """Store ``result``, unless nothing was measured or the store can't be written."""
        if result.measurement is None or result.measurement.failure is not None:
            return
        data = {"measurement": result.measurement.to_dict(), "seconds": result.seconds}
        with contextlib.suppress(ResourceLimit):  # the next run races again
            self.store.put(_KIND, json.dumps(data).encode(), self._key(subject))

    def _key(self, subject: CallSubject) -> str:
        source = self.sources.get(subject.group, "")
        return key_of(_FORMAT, self.where, source, subject.group, *subject.types)
