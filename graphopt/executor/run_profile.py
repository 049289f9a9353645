"""The profile of runs since the last specialization."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from graphopt.executor.watched_values import WatchedValues
from graphopt.ir.signature import Signature
from graphopt.profile import Pattern, Profile, observe, obstacle_to_specialization
from graphopt.specialization.instrumented_model import Observed
from graphopt.util.lazy_dataclass import dataclass


@dataclass(frozen=True)
class SavedRunInputs:
    """The data of a run for the profile, saved before the run overwrites its inputs.

    Attributes:
        feeds: the inputs, with the contents that guards read.
        inner: the observed intermediate values.
        is_profiled: whether to add the run to the profile.
    """

    feeds: Mapping[str, Any]
    inner: Observed | None = None
    is_profiled: bool = True


class RunProfile:
    """The profile of runs since the last specialization, and the inputs for which specialization failed.

    The caller serializes calls of methods that change it.

    Args:
        signature: the signature of the original.
        watched: the watched intermediate values.
        required: the number of runs that a specialization requires.
    """

    def __init__(self, signature: Signature, watched: WatchedValues, required: int) -> None:
        self._ports = [port for port in signature.inputs if port.role != "constant"]
        self._types = signature.input_types
        self._watched, self._required = watched, required
        self._failed_patterns: frozenset[object] = frozenset()
        self.profile = Profile("")

    @property
    def is_complete(self) -> bool:
        """Whether a specialization requires no further run."""
        return self.profile.runs >= self._required

    def add(self, feeds: Mapping[str, Any], inner: Observed | None) -> None:
        """Add a run on ``feeds``, unless a specialization for them failed.

        Args:
            inner: the observed intermediate values.
        """
        if self.known_failure(feeds) is not None:
            return
        values, zeros = ({}, {}) if inner is None else (inner.values, inner.zeros)
        profile = self.profile.with_run(observe(self._types, feeds), values, zeros)
        self.profile = replace(profile, watched=self._watched.watched, left_out=self._watched.left_out)

    def clear(self) -> None:
        """Remove all runs."""
        self.profile = Profile("")

    def note_failure(self, profile: Profile) -> None:
        """Record that a specialization for ``profile`` failed."""
        self._failed_patterns |= {pattern.key for pattern in profile.patterns}

    def known_failure(self, feeds: Mapping[str, Any]) -> str | None:
        """The reason if specializing for such ``feeds`` failed before, or ``None``."""
        if self._failed_patterns and Pattern(observe(self._types, feeds)).key in self._failed_patterns:
            return "no specialization could be made"
        return None

    def why_unfit(self, feeds: Mapping[str, Any]) -> str | None:
        """The reason why no specialization can be made for ``feeds``, or ``None``."""
        obstacles = (obstacle_to_specialization(port, feeds.get(port.name)) for port in self._ports)
        return next(filter(None, obstacles), None)
