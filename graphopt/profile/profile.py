"""A profile: what was seen of a model's values in some runs, as a file that people can read."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from graphopt import ir, publish
from graphopt.errors import InvalidModel, UsageError, unknown
from graphopt.ir.json.layout import render
from graphopt.ir.signature import Signature
from graphopt.profile.value_profile import Seen, merged

#: Of the file.
_VERSION = 1


@dataclass(frozen=True)
class Pattern:
    """Runs whose inputs were of the same types and shapes.

    Attributes:
        inputs: what was fed, by input; an input that is missing was not fed.
        count: how many runs.
    """

    inputs: Mapping[str, Seen]
    count: int = 1

    @property
    def key(self) -> tuple[tuple[str, str, tuple[int | str, ...] | None], ...]:
        """What makes two runs of one pattern."""
        return tuple(sorted((name, seen.type, seen.shape) for name, seen in self.inputs.items()))


@dataclass(frozen=True)
class Profile:
    """What was seen in some runs of one model.

    Attributes:
        model: fingerprint of the model; profiles of other models do not merge.
        patterns: the runs by types and shapes of inputs, in the order of first appearance.
        values: what all runs had in common, of inputs and of inner values, by name.
        requires_grad: of inputs whether a gradient is wanted; unknown where nothing is said.
    """

    model: str
    patterns: tuple[Pattern, ...] = ()
    values: Mapping[str, Seen] = field(default_factory=dict)
    requires_grad: Mapping[str, bool] = field(default_factory=dict)

    @property
    def runs(self) -> int:
        """How many runs."""
        return sum(pattern.count for pattern in self.patterns)

    @property
    def shapes(self) -> tuple[dict[str, tuple[int, ...]], ...]:
        """The shapes of the inputs in each pattern, the most frequent first; without sizes that varied."""
        found = []
        for pattern in sorted(self.patterns, key=lambda pattern: -pattern.count):
            shapes = {name: seen.shape or () for name, seen in pattern.inputs.items()}
            sizes = {name: tuple(d for d in dims if isinstance(d, int)) for name, dims in shapes.items()}
            found.append({name: known for name, known in sizes.items() if len(known) == len(shapes[name])})
        return tuple(found)

    def seen(self, inputs: Mapping[str, Seen], inner: Mapping[str, Seen] | None = None) -> Profile:
        """This profile after one more run, which fed ``inputs`` and computed ``inner``."""
        return self.merge(Profile(self.model, (Pattern(dict(inputs)),), {**inputs, **(inner or {})}))

    def merge(self, other: Profile) -> Profile:
        """The runs of both.

        Raises:
            UsageError: they are of two models, or one wants a gradient that the other does not.
        """
        if other.model != self.model:
            raise UsageError("the profiles are of two models", hint="make both of the same model")
        for name, wanted in other.requires_grad.items():
            if self.requires_grad.get(name, wanted) != wanted:
                raise UsageError(f"one profile wants a gradient for {name!r}, the other does not")
        patterns: dict[Any, Pattern] = {}
        for pattern in (*self.patterns, *other.patterns):
            known = patterns.get(pattern.key)
            patterns[pattern.key] = pattern if known is None else _together(known, pattern)
        values = dict(other.values)
        if self.patterns:
            values = merged(self.values, other.values) if other.patterns else dict(self.values)
        return Profile(
            self.model, tuple(patterns.values()), values, {**self.requires_grad, **other.requires_grad}
        )

    def to_dict(self) -> dict[str, Any]:
        """For JSON."""
        return {
            "graphopt_profile": _VERSION,
            "model": self.model,
            "runs": self.runs,
            "patterns": [
                {"count": pattern.count, "inputs": _dicts(pattern.inputs)} for pattern in self.patterns
            ],
            "values": _dicts(self.values),
            "requires_grad": dict(self.requires_grad),
        }

    @classmethod
    def from_dict(cls, data: Any) -> Profile:
        """Read what :meth:`to_dict` made.

        Raises:
            InvalidModel: it is something else.
        """
        if not isinstance(data, dict) or "graphopt_profile" not in data:
            raise InvalidModel("it is no profile", hint="graphopt profile writes one")
        if data["graphopt_profile"] != _VERSION:
            raise InvalidModel(f"it is a profile of version {data['graphopt_profile']!r}, not {_VERSION}")
        patterns, grads = data.get("patterns", []), data.get("requires_grad", {})
        if not isinstance(data.get("model"), str) or not isinstance(patterns, list):
            raise InvalidModel("the profile lacks its model or its patterns")
        if not isinstance(grads, dict) or not all(type(wanted) is bool for wanted in grads.values()):
            raise InvalidModel("requires_grad is not true or false for each input")
        return cls(
            data["model"],
            tuple(_pattern(item) for item in patterns),
            _all_seen(data.get("values", {})),
            grads,
        )

    def write(self, path: str | os.PathLike[str]) -> None:
        """Write it to a file, which is whole at any time.

        Raises:
            UsageError: that is not possible.
            ResourceLimit: the disk is full.
        """
        publish.write(Path(path), render(self.to_dict()))

    @classmethod
    def read(cls, path: str | os.PathLike[str]) -> Profile:
        """Read a file.

        Raises:
            UsageError: it is not there.
            InvalidModel: it is no profile.
        """
        try:
            data = json.loads(Path(path).read_text(encoding="utf-8"))
        except OSError as error:
            raise UsageError(f"can't read {path}: {error.strerror or error}") from error
        except (ValueError, RecursionError) as error:
            raise InvalidModel(f"{path}: it is no profile", hint="graphopt profile writes one") from error
        try:
            return cls.from_dict(data)
        except InvalidModel as error:
            raise InvalidModel(f"{path}: {error.message}", hint=error.hint) from error

    @classmethod
    def is_at(cls, path: str | os.PathLike[str]) -> bool:
        """Whether the file is a profile, by how it begins."""
        if not Path(path).is_file():  # to open a pipe would wait for a writer
            return False
        try:
            with open(path, "rb") as file:
                return b'"graphopt_profile"' in file.read(100)
        except OSError:
            return False

    @classmethod
    def merge_all(cls, profiles: Iterable[Profile]) -> Profile:
        """All runs of ``profiles``, of which there is at least one."""
        first, *rest = profiles
        for profile in rest:
            first = first.merge(profile)
        return first


def _together(one: Pattern, other: Pattern) -> Pattern:
    """Two sets of runs of one pattern: only contents can differ."""
    inputs = {
        name: seen if seen.ints == other.inputs[name].ints else replace(seen, ints=None)
        for name, seen in one.inputs.items()
    }
    return Pattern(inputs, one.count + other.count)


def _dicts(values: Mapping[str, Seen]) -> dict[str, Any]:
    return {name: seen.to_dict() for name, seen in values.items()}


def _all_seen(data: Any) -> dict[str, Seen]:
    if not isinstance(data, dict):
        raise InvalidModel(f"{data!r} does not tell of values by name")
    return {name: Seen.from_dict(item) for name, item in data.items()}


def _pattern(data: Any) -> Pattern:
    if not isinstance(data, dict) or type(data.get("count")) is not int or data["count"] < 1:
        raise InvalidModel("a pattern has no count")
    return Pattern(_all_seen(data.get("inputs")), data["count"])


def check_profile(profile: Profile, model: ir.Model) -> None:
    """Check that ``profile`` is of ``model`` and tells of its inputs as declared; people may have written it.

    Raises:
        UsageError: it is of another model, names an input that there is not, or tells another type, number of
            dims or size.
    """
    if profile.model != ir.fingerprint(model, names=True):
        raise UsageError("the profile is of another model", hint="graphopt profile makes one of this model")
    ports = {port.name: port for port in Signature.of(model).inputs}
    for pattern in profile.patterns:
        for name, seen in pattern.inputs.items():
            port = ports.get(name)
            if port is None:
                raise unknown("input", name, ports)
            fits = seen.shape is None or port.dims == () or port.takes(seen.shape)  # scalars may be anything
            if seen.type != port.type or not fits:
                raise UsageError(f"the profile says that input {name!r} is {seen}, the model says {port}")
