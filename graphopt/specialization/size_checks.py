"""Checks of the inputs of a run before it: their number, their shapes, and the addresses of static inputs.

The counterpart of ``size_asserts`` of PyTorch's Inductor.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from graphopt import ir
from graphopt.errors import UsageError, unknown
from graphopt.ir.signature import Port, Signature
from graphopt.util.text_tables import counted


class SizeChecks:
    """The checks of the runs of one model.

    Args:
        signature: the inputs of the model.
        static: names of the inputs that must be at the same address in each run.

    Raises:
        UsageError: ``static`` contains an unknown name.
    """

    def __init__(self, signature: Signature, static: tuple[str, ...] = ()) -> None:
        types = signature.input_types
        for name in static:
            if name not in types:
                raise unknown("input", name, types)
        self._required = [port.name for port in signature.fed if port.kind != "optional"]
        self._ports = {port.name: port for port in signature.inputs if port.role != "constant"}
        self._static = static
        self._addresses: dict[str, int] = {}

    def check(self, feeds: Mapping[str, Any]) -> None:
        """Check the inputs of a run.

        Args:
            feeds: arrays, or values of onnxruntime, by name.

        Raises:
            UsageError: an input is missing or unknown, a shape differs from the declaration or contradicts
                that of another input, or a static input has moved.
        """
        missing = [name for name in self._required if name not in feeds]
        if missing or not feeds.keys() <= self._ports.keys():
            odd = missing[0] if missing else next(name for name in feeds if name not in self._ports)
            fault = f"{odd!r} is missing" if missing else f"the model has no input {odd!r}"
            raise UsageError(
                f"the model has {counted(len(self._ports), 'input')}, {len(feeds)} given: {fault}",
                hint=f"inputs: {', '.join(self._ports)}",
            )
        symbols: dict[str, tuple[int, str]] = {}
        for name, value in feeds.items():
            shape = _shape_of(value)
            if shape is not None:
                _check_shape(self._ports[name], shape, symbols)
        for name in self._static:
            if name in feeds:
                self._check_address(name, feeds[name])

    def _check_address(self, name: str, value: Any) -> None:
        address = value.data_ptr() if hasattr(value, "data_ptr") else np.asarray(value).ctypes.data
        before = self._addresses.setdefault(name, address)
        if address != before:
            raise UsageError(
                f"static input {name!r} is at address {address:#x}, and was at {before:#x} in the first run",
                hint="pass the same array in each run, or leave the input out of static_inputs",
            )


def _shape_of(value: Any) -> tuple[int, ...] | None:
    """The shape of a tensor; ``None`` for other values."""
    if hasattr(value, "data_type"):
        return tuple(value.shape()) if value.is_tensor() else None
    shape = getattr(value, "shape", None)
    return None if shape is None else tuple(shape)


def _check_shape(port: Port, shape: tuple[int, ...], symbols: dict[str, tuple[int, str]]) -> None:
    """Check ``shape`` against ``port``, and its symbols against ``symbols``, which it extends."""
    if port.dims is None or port.kind != "tensor":
        return
    if len(shape) != len(port.dims):
        raise UsageError(
            f"the input {port.name!r} has {counted(len(shape), 'axis', 'axes')}, the model declares"
            f" {len(port.dims)}",
            hint=_declared(port.dims),
        )
    for axis, (size, dim) in enumerate(zip(shape, port.dims, strict=True)):
        if isinstance(dim, int) and size != dim:
            raise UsageError(
                f"the input {port.name!r} has size {size} on axis {axis}, the model declares {dim}",
                hint=_declared(port.dims),
            )
        if isinstance(dim, str) and dim not in ir.ANONYMOUS_DIMS:
            other, where = symbols.setdefault(dim, (size, port.name))
            if other != size:
                raise UsageError(
                    f"the input {port.name!r} has size {size} on axis {axis}, and {where!r} has {other} for"
                    f" the same dim {dim!r}",
                    hint=f"pass inputs with one size for {dim!r}",
                )


def _declared(dims: Sequence[int | str | None]) -> str:
    """The declared shape, as a hint."""
    return f"declared shape: {', '.join('?' if dim is None else str(dim) for dim in dims)}"
