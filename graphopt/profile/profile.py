"""Profiles of runs of a model, and their file format (JSON)."""

from __future__ import annotations

import json
import os
from collections.abc import Collection, Iterable, Mapping
from dataclasses import field, replace
from pathlib import Path
from typing import Any, TypeVar

from graphopt import ir, publish
from graphopt.errors import InvalidModel, UsageError, unknown
from graphopt.ir.signature import Signature
from graphopt.profile.value_profile import ValueProfile, merged
from graphopt.util.lazy_dataclass import dataclass

T = TypeVar("T")
#: Version of the file format.
_VERSION = 1


@dataclass(frozen=True)
class Pattern:
    """A group of runs whose inputs had the same types and shapes.

    Attributes:
        inputs: profiles by input; inputs that were not fed are missing.
        count: the number of runs.
    """

    inputs: Mapping[str, ValueProfile]
    count: int = 1

    @property
    def key(self) -> tuple[tuple[str, str, tuple[int | str, ...] | None], ...]:
        """The types and shapes common to all runs of one pattern."""
        return tuple(sorted((name, observed.type, observed.shape) for name, observed in self.inputs.items()))


@dataclass(frozen=True)
class Profile:
    """A profile of one or more runs of one model.

    Attributes:
        model: fingerprint of the model; profiles of different models can't be merged.
        patterns: the runs grouped by input types and shapes, in order of first occurrence.
        values: profiles common to all runs, by name of an input or intermediate value.
        requires_grad: whether a gradient is required, by input; unknown for missing inputs.
        zero_gradients: whether a watched gradient was zero in all runs, by name.
        watched: the number of intermediate values that the runs watched.
        left_out: the number of other intermediate values, which are beyond a limit or can't be watched.
    """

    model: str
    patterns: tuple[Pattern, ...] = ()
    values: Mapping[str, ValueProfile] = field(default_factory=dict)
    requires_grad: Mapping[str, bool] = field(default_factory=dict)
    zero_gradients: Mapping[str, bool] = field(default_factory=dict)
    watched: int = 0
    left_out: int = 0

    @property
    def runs(self) -> int:
        """The number of runs."""
        return sum(pattern.count for pattern in self.patterns)

    @property
    def shapes(self) -> tuple[dict[str, tuple[int, ...]], ...]:
        """The input shapes of each pattern, most frequent first, without shapes that varied."""
        found = []
        for pattern in sorted(self.patterns, key=lambda pattern: -pattern.count):
            shapes = {name: observed.shape or () for name, observed in pattern.inputs.items()}
            sizes = {name: tuple(d for d in dims if isinstance(d, int)) for name, dims in shapes.items()}
            found.append({name: known for name, known in sizes.items() if len(known) == len(shapes[name])})
        return tuple(found)

    def with_run(
        self,
        inputs: Mapping[str, ValueProfile],
        inner: Mapping[str, ValueProfile] | None = None,
        zeros: Mapping[str, bool] | None = None,
    ) -> Profile:
        """This profile with one more run, of these inputs, intermediate values and zero gradients."""
        values = {**inputs, **(inner or {})}
        return self.merge(Profile(self.model, (Pattern(dict(inputs)),), values, zero_gradients=zeros or {}))

    def merge(self, other: Profile) -> Profile:
        """A profile of the runs of both.

        Raises:
            UsageError: the models differ, or ``requires_grad`` differs for an input.
        """
        if other.model != self.model:
            raise UsageError("the profiles are of different models", hint="record both with the same model")
        for name, wanted in other.requires_grad.items():
            if self.requires_grad.get(name, wanted) != wanted:
                raise UsageError(f"requires_grad differs between the profiles for {name!r}")
        patterns: dict[Any, Pattern] = {}
        for pattern in (*self.patterns, *other.patterns):
            known = patterns.get(pattern.key)
            patterns[pattern.key] = pattern if known is None else _merge_pattern(known, pattern)
        values = dict(other.values)
        if self.patterns:
            values = merged(self.values, other.values) if other.patterns else dict(self.values)
        zeros = {**self.zero_gradients, **other.zero_gradients}
        return Profile(
            self.model,
            tuple(patterns.values()),
            values,
            {**self.requires_grad, **other.requires_grad},
            {name: zero and self.zero_gradients.get(name, True) for name, zero in zeros.items()},
            max(self.watched, other.watched),
            max(self.left_out, other.left_out),
        )

    def without_inputs(self, names: Collection[str], model: str) -> Profile:
        """The profile of the model with fingerprint ``model``, which lacks the inputs ``names``."""
        patterns: dict[Any, Pattern] = {}
        for pattern in self.patterns:
            left = Pattern(_without(pattern.inputs, names), pattern.count)
            known = patterns.get(left.key)
            patterns[left.key] = left if known is None else _merge_pattern(known, left)
        return replace(
            self,
            model=model,
            patterns=tuple(patterns.values()),
            values=_without(self.values, names),
            requires_grad=_without(self.requires_grad, names),
        )

    def to_dict(self) -> dict[str, Any]:
        """The JSON form."""
        return {
            "graphopt_profile": _VERSION,
            "model": self.model,
            "runs": self.runs,
            "patterns": [
                {"count": pattern.count, "inputs": _dicts(pattern.inputs)} for pattern in self.patterns
            ],
            "values": _dicts(self.values),
            "requires_grad": dict(self.requires_grad),
            **({"zero_gradients": dict(self.zero_gradients)} if self.zero_gradients else {}),
            "watched": self.watched,
            "left_out": self.left_out,
        }

    @classmethod
    def from_dict(cls, data: Any) -> Profile:
        """Parse the result of :meth:`to_dict`.

        Raises:
            InvalidModel: ``data`` is malformed.
        """
        if not isinstance(data, dict) or "graphopt_profile" not in data:
            raise InvalidModel("not a profile", hint="graphopt profile writes one")
        version = data["graphopt_profile"]
        if type(version) is not int or version != _VERSION:
            raise InvalidModel(f"unsupported profile version {version!r}; supported: {_VERSION}")
        patterns = data.get("patterns", [])
        if not isinstance(data.get("model"), str) or not isinstance(patterns, list):
            raise InvalidModel("malformed profile: model or patterns missing")
        _number(data, "runs")  # counts of patterns, which may be hand-written, take precedence
        return cls(
            data["model"],
            tuple(map(_pattern, patterns)),
            _value_profiles(data.get("values", {})),
            _booleans(data, "requires_grad"),
            _booleans(data, "zero_gradients"),
            _number(data, "watched"),
            _number(data, "left_out"),
        )

    def write(self, path: str | os.PathLike[str]) -> None:
        """Write the profile to a file, atomically.

        Raises:
            UsageError: the file can't be written.
            ResourceLimit: the disk is full.
        """
        from graphopt.ir.json.pretty_printer import render

        publish.write(Path(path), render(self.to_dict()))

    @classmethod
    def read(cls, path: str | os.PathLike[str]) -> Profile:
        """Read a profile from a file.

        Raises:
            UsageError: the file can't be read.
            InvalidModel: the file is not a profile.
        """
        try:
            data = json.loads(Path(path).read_text(encoding="utf-8"))
        except OSError as error:
            raise UsageError(f"can't read {path}: {error.strerror or error}") from error
        except (ValueError, RecursionError) as error:
            raise InvalidModel(f"{path}: not a profile", hint="graphopt profile writes one") from error
        try:
            return cls.from_dict(data)
        except InvalidModel as error:
            raise InvalidModel(f"{path}: {error.message}", hint=error.hint) from error

    @classmethod
    def is_at(cls, path: str | os.PathLike[str]) -> bool:
        """Whether the file starts like a profile."""
        if not Path(path).is_file():  # opening a pipe would block
            return False
        try:
            with open(path, "rb") as file:
                return b'"graphopt_profile"' in file.read(100)
        except OSError:
            return False

    @classmethod
    def merge_all(cls, profiles: Iterable[Profile]) -> Profile:
        """A profile of the runs of all ``profiles``; there must be at least one."""
        first, *rest = profiles
        for profile in rest:
            first = first.merge(profile)
        return first


def _without(entries: Mapping[str, T], names: Collection[str]) -> dict[str, T]:
    return {name: entry for name, entry in entries.items() if name not in names}


def _merge_pattern(one: Pattern, other: Pattern) -> Pattern:
    """Merge two groups of runs with the same key, whose inputs differ in contents only."""
    inputs = {
        name: observed if observed.ints == other.inputs[name].ints else replace(observed, ints=None)
        for name, observed in one.inputs.items()
    }
    return Pattern(inputs, one.count + other.count)


def _dicts(values: Mapping[str, ValueProfile]) -> dict[str, Any]:
    return {name: observed.to_dict() for name, observed in values.items()}


def _value_profiles(data: Any) -> dict[str, ValueProfile]:
    if not isinstance(data, dict):
        raise InvalidModel(f"malformed value profiles, not a mapping by name: {data!r}")
    return {name: ValueProfile.from_dict(item) for name, item in data.items()}


def _pattern(data: Any) -> Pattern:
    if not isinstance(data, dict) or type(data.get("count")) is not int or data["count"] < 1:
        raise InvalidModel("malformed pattern: no positive count")
    return Pattern(_value_profiles(data.get("inputs")), data["count"])


def _booleans(data: Mapping[str, Any], key: str) -> dict[str, bool]:
    """The field ``key``, which maps names to booleans; empty if it is missing."""
    found = data.get(key, {})
    if not isinstance(found, dict) or not all(type(item) is bool for item in found.values()):
        raise InvalidModel(f"malformed profile: {key} must map names to booleans, not {found!r}")
    return found


def _number(data: Mapping[str, Any], key: str) -> int:
    """The field ``key``, a natural number; 0 if it is missing."""
    found = data.get(key, 0)
    if type(found) is not int or found < 0:
        raise InvalidModel(f"malformed profile: {key} must be a natural number, not {found!r}")
    return found


def check_profile(profile: Profile, model: ir.Model) -> None:
    """Check that ``profile``, which may be hand-written, is a profile of ``model``, and fits its inputs.

    Raises:
        UsageError: the profile is of another model, names an unknown input, or contradicts a declared type,
            rank or size.
    """
    if profile.model != ir.fingerprint(model, names=True):
        raise UsageError("the profile is of another model", hint="graphopt profile records one of this model")
    ports = {port.name: port for port in Signature.of(model).inputs}
    for pattern in profile.patterns:
        for name, observed in pattern.inputs.items():
            port = ports.get(name)
            if port is None:
                raise unknown("input", name, ports)
            # a scalar declaration accepts any shape
            fits = observed.shape is None or port.dims == () or port.accepts(observed.shape)
            if observed.type != port.type or not fits:
                raise UsageError(
                    f"input {name!r} is {observed} in the profile, but the model declares {port}"
                )
