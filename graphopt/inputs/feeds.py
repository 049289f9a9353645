"""Inputs for running a model: given by the user, or generated to suit it."""

from __future__ import annotations

import math
import re
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import field, replace
from pathlib import Path
from typing import Any

import numpy as np

from graphopt import ir
from graphopt.errors import ResourceLimit, UnsupportedModel, UsageError, unknown
from graphopt.inputs.constraint_system import ConstraintSystem
from graphopt.inputs.constraints_from_errors import constraints_from_error
from graphopt.inputs.dim_bindings import RANKS, Binding, Dimensions, Shape
from graphopt.inputs.fit_array import converted
from graphopt.inputs.operator_value_constraints import ValueRange
from graphopt.inputs.value_constraint_inference import value_ranges
from graphopt.inputs.value_generator import BOUNDARY_DISTRIBUTIONS, Distribution, Sampler
from graphopt.ir.signature import Port, Signature
from graphopt.util import npz
from graphopt.util.lazy_dataclass import dataclass
from graphopt.util.ort_array_conversion import native, numpy_type
from graphopt.util.parse_values import parse_natural

Feeds = dict[str, Any]

#: Maximum total size of the feeds of one run, in bytes.
_LIMIT = 1 << 29


@dataclass(frozen=True)
class InputOptions:
    """The user's options for inputs.

    Attributes:
        shapes: shapes by input name.
        files: arrays to feed, as (input name, ``.npy`` file) or (``None``, ``.npz`` file).
        seed: seed of all generated inputs.
        ranges: smallest and largest size of dynamic dims; sizes outside are not tried.
        vouched: whether the user also fixed dims of the model.
        arrays: arrays to feed, by input name.
        profiled: whether shapes and arrays originate from a profile. If the original does not run with them,
            nothing is compared, and no error is raised.
        examples: shapes by input name, with which the model runs; they are tried first.
    """

    shapes: Mapping[str, Shape] = field(default_factory=dict)
    files: tuple[tuple[str | None, Path], ...] = ()
    seed: int = 0
    ranges: Mapping[str, tuple[int, int | None]] = field(default_factory=dict)
    vouched: bool = False
    arrays: Mapping[str, Any] = field(default_factory=dict)
    profiled: bool = False
    examples: tuple[Mapping[str, Shape], ...] = ()

    @classmethod
    def parse(cls, shapes: Iterable[str] = (), files: Iterable[str] = (), seed: int = 0) -> InputOptions:
        """Read the values of ``--input-shape``, ``--input`` and ``--seed``."""
        parsed = [parse_shape(text) for text in shapes]
        found = [parse_file(text) for text in files]
        for kind, names in (
            ("shapes", [name for name, _ in parsed]),
            ("files", [n for n, _ in found]),
        ):
            twice = next((name for name in names if name is not None and names.count(name) > 1), None)
            if twice is not None:
                raise UsageError(f"input {twice!r} has several {kind}", hint="give one for each input")
        return cls(dict(parsed), tuple(found), seed)

    @property
    def given(self) -> bool:
        """Whether the user specified shapes, arrays or sizes."""
        if self.profiled:
            return False
        return bool(self.shapes or self.files or self.arrays or self.ranges or self.vouched)


#: The shape of another input at the start of a name: ``ids:2x128,`` in ``ids:2x128,lens``.
_JOINED = re.compile(r"(.+:\s*\[?\d+(?:\s*x\s*\d+)*\]?)\s*,")


def parse_shape(text: str) -> tuple[str, Shape]:
    """Parse ``name:1,3,224,224`` or ``name:[1,3]``; the name may contain colons, ``name:`` is a scalar.

    Raises:
        UsageError: the name is missing, or a size is not a natural number.
    """
    name, colon, sizes = text.rpartition(":")
    match = re.fullmatch(r"\s*(?:\[(.*)\]|(.*?))\s*", sizes)
    words = [word for word in re.split(r"[,x\s]+", (match[1] or match[2] or "") if match else sizes) if word]
    if colon and name and re.search(r"\d\s*x\s*\d", sizes) and "," in sizes:
        raise UsageError(
            f"{text!r} gives several shapes", hint="only bench and optimize --tune accept several shapes"
        )
    try:
        shape = tuple(map(parse_natural, words)) if colon and name else None
    except ValueError:
        shape = None
    if shape is None:
        raise UsageError(f"can't read the input shape {text!r}", hint="write NAME:1x3x224x224")
    return name, shape


def parse_file(text: str) -> tuple[str | None, Path]:
    """Parse ``name:file.npy`` or ``file.npz``; the name may contain colons, and so may a Windows path.

    Raises:
        UsageError: the text has neither form.
    """
    hint = "write NAME:FILE.npy, or FILE.npz with arrays named like the inputs"
    if text.endswith(".npz"):
        return None, Path(text)
    match = re.fullmatch(r"(.+?):([A-Za-z]:[\\/][^:]*)", text) or re.fullmatch(r"(.+):([^:]*)", text)
    if match is None or not text.endswith(".npy"):
        raise UsageError(f"can't read the input {text!r}", hint=hint)
    return match[1], Path(match[2])


class Inputs:
    """Generates feeds for a model.

    Args:
        model: the model, whose interface and uses of inputs are read.
        options: the user's options.
        reload: loads the model again when constraints are derived from its graph, so that it need not be
            kept.

    Raises:
        UsageError: the options name an unknown input, or do not fit the model.
        UnsupportedModel: an input is of a type that can't be fed, such as a sparse tensor.
    """

    def __init__(
        self,
        model: ir.Model,
        options: InputOptions | None = None,
        *,
        reload: Callable[[], ir.Model] | None = None,
    ) -> None:
        self.options = options or InputOptions()
        self.signature = Signature.of(model)
        self._ports = {port.name: port for port in self.signature.inputs if port.role != "constant"}
        self._defaults = {
            value.name: value.const_value for value in model.graph.inputs if value.const_value is not None
        }
        for port in self.signature.fed:
            if not port.type or any(word in port.type for word in ("sparse", "undefined", "(type ")):
                raise UnsupportedModel(
                    f"input {port.name!r} is of type {port.type or 'unknown'}, which can't be fed"
                )
        self._given = {name: self._fit(name, array) for name, array in self._load()}
        self._fixed = self._fixed_shapes()
        self._value_ranges = value_ranges(model)
        self._load_model = reload or (lambda: model)
        self._known: dict[str, int] = {}
        self.use_rank(RANKS[0])

    @property
    def open_ranks(self) -> bool:
        """Whether some generated input declares no rank."""
        return any(
            port.dims is None and port.name not in self._fixed and "map" not in port.type
            for port in self._generated()
        )

    @property
    def given(self) -> Feeds:
        """The user's arrays, by input."""
        return dict(self._given)

    @property
    def dynamic(self) -> bool:
        """Whether some dim is free."""
        return any(symbol not in self._known for symbol in self.dimensions.symbols)

    @property
    def restrictable(self) -> bool:
        """Whether the values of some input depend on the restriction level."""
        return any(
            port.kind != "tensor"
            or not ("float" in port.type or "double" in port.type)
            or self._value_ranges[port.name].known
            for port in self._generated()
        )

    def use_rank(self, rank: int) -> None:
        """Use ``rank`` dims for inputs that declare no rank."""
        self.dimensions = Dimensions.of(self.signature.fed, rank)
        self.constraints: ConstraintSystem | None = None
        self._known = {}
        for name, shape in self._fixed.items():
            for dim, size in zip(self.dimensions.dims.get(name, ()), shape, strict=False):
                if isinstance(dim, str):
                    self._known.setdefault(dim, size)
                    if self._within(dim, size) != size:
                        raise UsageError(f"dim {dim!r} of input {name!r} is {size}, outside its range")

    def bindings(self, tries: Iterable[dict[str, int]]) -> Iterator[dict[str, int]]:
        """:meth:`binding` of each of ``tries``."""
        yield from map(self.binding, tries)

    def binding(self, requested: Binding) -> dict[str, int]:
        """``requested`` adjusted to the user's fixed sizes and ranges, and to the constraints."""
        binding = {
            symbol: self._known.get(symbol, self._within(symbol, size)) for symbol, size in requested.items()
        }
        return binding if self.constraints is None else self.constraints.adjust(binding)

    def learn_from(self, refusal: str, binding: Binding) -> bool:
        """Derive constraints from the error of a run with ``binding``; returns whether any are new.

        After the first error, the constraints of the graph are collected, which is slower than a few runs.
        """
        if self.constraints is None:
            if not self.dynamic:
                return False
            self.constraints = ConstraintSystem(
                self._load_model(), self.dimensions, self._known, self.options.ranges
            )
            return True
        rules = constraints_from_error(refusal, self.constraints, binding)
        return any([self.constraints.add(rule) for rule in rules])

    def drop_constraints(self) -> bool:
        """Drop all constraints; returns whether any existed."""
        learned, self.constraints = self.constraints, None
        return learned is not None

    def known_bindings(self) -> Iterator[dict[str, int]]:
        """Bindings with which the model is known to run, from the user's example shapes that fit it."""
        for shapes in self.options.examples:
            binding: dict[str, int] = {}
            for name, shape in shapes.items():
                dims = self.dimensions.dims.get(name, ())
                for dim, size in zip(dims, shape, strict=True) if len(dims) == len(shape) else ():
                    if isinstance(dim, str) and dim in self.dimensions.symbols:
                        binding.setdefault(dim, size)
            if all(binding.get(symbol, 0) > 0 for symbol in self.dimensions.symbols):
                yield binding

    def ends(self, binding: Binding) -> Iterator[dict[str, int]]:
        """``binding`` with dims at the upper ends of the user's ranges, then at the lower ends."""
        for end in (-1, 0):
            sizes = {symbol: found[end] for symbol, found in self.options.ranges.items() if symbol in binding}
            if sizes:
                yield {**binding, **{symbol: size for symbol, size in sizes.items() if size is not None}}

    def _within(self, symbol: str, size: int) -> int:
        """``size``, or a comparable size within the range of ``symbol``."""
        first, last = self.options.ranges.get(symbol, (0, None))
        moved = size if size >= first else first + max(size - 1, 0)
        return moved if last is None else min(moved, last)

    def elements(self, binding: Binding) -> int:
        """Number of elements of all generated inputs together."""
        return sum(math.prod(self._shape(port, binding)) for port in self._generated())

    def feeds(self, binding: Binding, distribution: Distribution = "normal", restriction: int = 0) -> Feeds:
        """Values for every input that must be fed.

        Args:
            binding: sizes of the dynamic dims.
            distribution: distribution of the values.
            restriction: level of restriction, for models whose valid input range is narrower than inferred;
                ignored by boundary-value distributions. 0: the inferred range; 1: integers are 0 or 1; 2: all
                1; 3: all 0.

        Raises:
            ResourceLimit: the values would exceed the limit.
        """
        total = 4 * self.elements(binding)
        if total > _LIMIT:
            raise ResourceLimit(f"the inputs would take {total / 2**20:.0f} MiB")
        if distribution in BOUNDARY_DISTRIBUTIONS:
            restriction = 0
        feeds = dict(self._given)
        for port in self._generated():
            generator = np.random.default_rng([self.options.seed, zlib.crc32(port.name.encode())])
            value_range = self._value_range(port, binding)
            shape = self._shape(port, binding)
            sampler = Sampler(shape, value_range, distribution, restriction, generator)
            feeds[port.name] = sampler.sample(port.type)
        if distribution == "overridden":
            feeds |= self._overrides(feeds)
        return feeds

    # The user's inputs ------------------------------------------------------------------------

    def _load(self) -> Iterator[tuple[str, Any]]:
        found = list(self.options.arrays.items())
        # unknown names are reported before unreadable files
        for known in (*self.options.arrays, *(name for name, _ in self.options.files if name is not None)):
            self._known_name(known)
        for name, path in self.options.files:
            content = npz.read(path)
            found += content.items() if name is None else [(name, content)]
        for name, array in found:
            yield self._known_name(name), native(array, name)

    def _known_name(self, name: str) -> str:
        if name in self._ports:
            return name
        error = unknown("input", name, self._ports)
        if joined := _JOINED.match(name):
            other = name[joined.end() :].strip()
            error.hint = (
                f"repeat the option for each input: --input-shape {joined[1].strip()} --input-shape {other}:…"
            )
        raise error

    def _fit(self, name: str, array: Any) -> Any:
        """``array`` in the element type of the input (:func:`graphopt.inputs.fit_array.converted`)."""
        port = self._ports[name]
        if port.kind != "tensor":
            raise UsageError(f"input {name!r} is of type {port}; files can contain tensors only")
        if not isinstance(array, np.ndarray):
            raise UsageError(f"input {name!r} expects an array, not {type(array).__name__}")
        self._check_shape(port, array.shape)
        return converted(name, array, numpy_type(port.type))

    def _fixed_shapes(self) -> dict[str, Shape]:
        shapes = {self._known_name(name): tuple(shape) for name, shape in self.options.shapes.items()}
        for name, shape in shapes.items():
            self._check_shape(self._ports[name], shape)
            given = self._given.get(name)
            if given is not None and given.shape != shape:
                raise UsageError(
                    f"input {name!r}: the array has shape {given.shape}, and the given shape is {shape}"
                )
        return shapes | {name: array.shape for name, array in self._given.items()}

    def _check_shape(self, port: Port, shape: Shape) -> None:
        if port.dims is None:
            return
        fits = len(shape) == len(port.dims) and all(
            not isinstance(dim, int) or dim == size for dim, size in zip(port.dims, shape, strict=True)
        )
        if not fits:
            declared = ", ".join("?" if dim is None else str(dim) for dim in port.dims)
            given = ", ".join(map(str, shape))
            raise UsageError(f"input {port.name!r} has shape [{declared}], not [{given}]")

    # Generated inputs -------------------------------------------------------------------------

    def _generated(self) -> list[Port]:
        return [port for port in self.signature.fed if port.name not in self._given]

    def _shape(self, port: Port, binding: Binding) -> Shape:
        fixed = self._fixed.get(port.name)
        return self.dimensions.shape(port.name, binding) if fixed is None else fixed

    def _value_range(self, port: Port, binding: Binding) -> ValueRange:
        value_range = self._value_ranges[port.name]
        tops: list[float] = [binding[symbol] - 1 for symbol in value_range.below if symbol in binding]
        if value_range.below:
            tops.append(value_range.high if value_range.high is not None else max(tops, default=1))
            value_range = replace(value_range, high=max(0, min(tops)))
        return value_range

    @property
    def has_overridable(self) -> bool:
        """Whether the model has initializers that callers can override."""
        return not self._defaults.keys().isdisjoint(port.name for port in self._ports.values())

    def _overrides(self, feeds: Feeds) -> Feeds:
        """Other values for overridable initializers: floats perturbed, other elements reversed."""
        overrides = {}
        for port in self._ports.values():
            tensor = self._defaults.get(port.name)
            if port.name in feeds or tensor is None:
                continue
            array = tensor.numpy()
            if array.dtype.kind == "f":
                generator = np.random.default_rng([self.options.seed, zlib.crc32(port.name.encode())])
                noise = generator.standard_normal(array.shape)
                with np.errstate(over="ignore"):  # numbers next to the largest one become infinite
                    overrides[port.name] = (array * (1 + noise / 4) + noise / 16).astype(array.dtype)
            elif array.dtype.kind in "iub":
                overrides[port.name] = array.reshape(-1)[::-1].reshape(array.shape)
        return overrides
