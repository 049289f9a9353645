"""Runs the launches of kernels on numpy arrays, by a device that tests provide."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from graphopt.fusion.backends.cuda.device_printer import device_kernel
from graphopt.fusion.backends.cuda.launch import Input, Output, Scratch, SizeValue
from graphopt.fusion.loops.interpreter import TYPES, number
from graphopt.fusion.loops.ir import Kernel
from tests.fusion.backends.cuda.launch_values import blocks, count, function_name, holds

#: Bytes after each buffer, to find writes beyond its end.
_GUARD = 64
_CANARY = 0xA5


class Device(Protocol):
    """Compiled kernels, and memory.

    ``launch`` runs a function; its arguments are buffers and integers.
    """

    def buffer(self, data: np.ndarray) -> Any: ...

    def read(self, buffer: Any, size: int) -> np.ndarray: ...

    def launch(self, function: str, blocks: int, threads: int, arguments: Sequence[Any]) -> None: ...


@dataclass(frozen=True)
class Made:
    """A launch that was made."""

    function: str
    blocks: int


def run_on(
    device: Device, kernel: Kernel, inputs: Sequence[np.ndarray], in_place: bool = False
) -> tuple[list[np.ndarray], list[Made]]:
    """The outputs of ``kernel``, and its launches."""
    found = device_kernel(kernel)
    symbols = [inputs[symbol.input].shape[symbol.axis] for symbol in kernel.symbols]
    sources = [_bytes(np.ascontiguousarray(array).reshape(array.shape)) for array in inputs]
    ins = [device.buffer(data) for data in sources]
    shapes = [tuple(number(dim, symbols) for dim in port.dims) for port in kernel.outputs]
    sizes = [
        int(np.prod(shape)) * port.element.bytes for shape, port in zip(shapes, kernel.outputs, strict=True)
    ]
    shared = {output: ins[input_] for input_, output in kernel.in_place} if in_place else {}
    outs = [
        shared[index] if index in shared else device.buffer(_filled(size)) for index, size in enumerate(sizes)
    ]
    scratch_sizes = [count(buffer.count, symbols) * buffer.bytes for buffer in found.scratch]
    scratch = [device.buffer(_filled(size)) for size in scratch_sizes]
    made = []
    for launch in found.launches:
        grid = blocks(launch.grid, symbols)
        if not grid or not holds(launch.condition, symbols):
            continue
        arguments = []
        for item in launch.arguments:
            match item:
                case Input(index):
                    arguments.append(ins[index])
                case Output(index):
                    arguments.append(outs[index])
                case Scratch(index):
                    arguments.append(scratch[index])
                case SizeValue(size):
                    arguments.append(np.int64(number(size, symbols)))
        name = function_name(launch, symbols)
        device.launch(name, grid, launch.block, arguments)
        made.append(Made(name, grid))
    results = []
    for buffer, size, shape, port in zip(outs, sizes, shapes, kernel.outputs, strict=True):
        data = device.read(buffer, size + _GUARD)
        assert (data[size:] == _CANARY).all(), "memory after an output was written"
        results.append(data[:size].view(TYPES[port.element]).reshape(shape))
    for buffer, size in zip(scratch, scratch_sizes, strict=True):
        assert (device.read(buffer, size + _GUARD)[size:] == _CANARY).all(), (
            "memory after scratch was written"
        )
    return results, made


def _bytes(array: np.ndarray) -> np.ndarray:
    """The memory of ``array``, followed by a guard."""
    data = array.reshape(-1).view(np.uint8) if array.size else np.zeros(0, np.uint8)
    return np.concatenate([data, np.full(_GUARD, _CANARY, np.uint8)])


def _filled(size: int) -> np.ndarray:
    return np.full(size + _GUARD, _CANARY, np.uint8)
