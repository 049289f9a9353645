"""Guards: the assumptions that a specialized model makes about its inputs."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import field, replace
from functools import cached_property
from typing import Any

import numpy as np

from graphopt import ir
from graphopt.errors import InvalidModel
from graphopt.profile.value_profile import Dim, ValueProfile, has_type, is_symbol
from graphopt.util.lazy_dataclass import dataclass
from graphopt.util.ort_array_conversion import numpy_type
from graphopt.util.text_tables import counted


@dataclass(frozen=True)
class Guard:
    """Assumptions about inputs.

    Attributes:
        inputs: the assumed type, shape and contents, by input. Equal symbols denote equal sizes; an input
            without a shape may have any shape.
        absent: inputs with a default that are assumed not to be fed.
    """

    inputs: Mapping[str, ValueProfile] = field(default_factory=dict)
    absent: tuple[str, ...] = ()

    def holds(self, feeds: Mapping[str, Any]) -> bool:
        """Whether ``feeds`` (arrays by name) satisfy the guard; stops at the first violation."""
        return next(self._differences(feeds), None) is None

    def explain(self, feeds: Mapping[str, Any]) -> list[str]:
        """The violated assumptions, one message each.

        >>> guard = Guard({"x": ValueProfile("tensor(float)", (1, 128))})
        >>> guard.explain({"x": np.zeros((1, 64), np.float32)})
        ["dim 1 of 'x' is 64, not 128"]
        """
        return list(self._differences(feeds))

    def _differences(self, feeds: Mapping[str, Any]) -> Iterator[str]:
        sizes: dict[str, tuple[int, str]] = {}
        for name in self.absent:
            if name in feeds:
                yield f"{name!r} is fed, but its default is assumed"
        for name, expected in self.inputs.items():
            value = feeds.get(name)
            if value is None:
                if expected.always:
                    yield f"{name!r} is not fed"
                continue
            yield from self._of_one(name, expected, value, sizes)

    def _of_one(
        self, name: str, expected: ValueProfile, value: Any, sizes: dict[str, tuple[int, str]]
    ) -> Iterator[str]:
        shape = getattr(value, "shape", None)
        if shape is None or callable(shape):  # not an array
            if expected.shape is not None:
                yield f"{name!r} is not an array"
            return
        wanted = self._dtypes[name]
        if wanted is not None and value.dtype != wanted and not has_type(value.dtype, expected.type):
            yield f"{name!r} holds {value.dtype}, not {wanted}"
        if expected.shape is None:
            return
        if len(shape) != len(expected.shape):
            yield f"{name!r} has {counted(len(shape), 'dim')}, not {len(expected.shape)}"
            return
        for axis, (size, dim) in enumerate(zip(shape, expected.shape, strict=True)):
            if isinstance(dim, int):
                if size != dim:
                    yield f"dim {axis} of {name!r} is {size}, not {dim}"
                continue
            if not is_symbol(dim):
                continue
            first, place = sizes.setdefault(dim, (size, f"dim {axis} of {name!r}"))
            if size != first:
                yield f"dim {axis} of {name!r} is {size}, not {first} as {place}"
        if expected.ints is not None and tuple(np.ravel(value).tolist()) != expected.ints:
            found = ", ".join(map(str, np.ravel(value).tolist()))
            yield f"{name!r} holds {found}, not {', '.join(map(str, expected.ints))}"

    @cached_property
    def _dtypes(self) -> dict[str, np.dtype[Any] | None]:
        return {name: numpy_type(expected.type) for name, expected in self.inputs.items()}

    def admits(self, inputs: Mapping[str, ValueProfile]) -> bool:
        """Whether the guard provably holds in all runs with these input profiles."""
        if self.inputs.keys() != inputs.keys():
            return False
        sizes: dict[str, Dim] = {}
        for name, wanted in self.inputs.items():
            observed = inputs[name]
            if wanted.ints is not None and wanted.ints != observed.ints:
                return False
            if wanted.shape is None or observed.shape is None:
                if wanted.shape is not observed.shape:
                    return False
                continue
            if len(wanted.shape) != len(observed.shape):
                return False
            for dim, size in zip(wanted.shape, observed.shape, strict=True):
                known = sizes.setdefault(dim, size) if is_symbol(dim) else dim
                if known != size and known not in ir.ANONYMOUS_DIMS:
                    return False
        return True

    def without_contents(self) -> Guard:
        """This guard without assumptions about contents."""
        return replace(
            self, inputs={name: replace(expected, ints=None) for name, expected in self.inputs.items()}
        )

    def __str__(self) -> str:
        words = [f"{name}: {expected}" for name, expected in self.inputs.items()]
        words += [f"{name}: absent" for name in self.absent]
        return "; ".join(words) or "nothing"

    def to_dict(self) -> dict[str, Any]:
        """The JSON form."""
        found: dict[str, Any] = {
            "inputs": {name: expected.to_dict() for name, expected in self.inputs.items()}
        }
        return found | ({"absent": list(self.absent)} if self.absent else {})

    @classmethod
    def from_dict(cls, data: Any) -> Guard:
        """Parse the result of :meth:`to_dict`.

        Raises:
            InvalidModel: ``data`` is malformed.
        """
        fields = data if isinstance(data, dict) else {}
        inputs, absent = fields.get("inputs"), fields.get("absent", [])
        if not isinstance(inputs, dict) or not isinstance(absent, list):
            raise InvalidModel("malformed guard: no mapping of inputs")
        return cls(
            {name: ValueProfile.from_dict(item) for name, item in inputs.items()}, tuple(map(str, absent))
        )
