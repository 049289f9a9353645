"""The text form of the loop IR, one instruction per line."""

from __future__ import annotations

from collections.abc import Iterator

from graphopt.fusion.loops.ir import ONE, Access, Instruction, Kernel, Size


def text(kernel: Kernel) -> str:
    """``kernel`` as text."""
    return "\n".join(_lines(kernel)) + "\n"


def _lines(kernel: Kernel) -> Iterator[str]:
    yield f"kernel {kernel.name}"
    for kind, ports in (("in", kernel.inputs), ("out", kernel.outputs)):
        for index, port in enumerate(ports):
            yield f"  {kind}{index}: {port.element.name.lower()}[{', '.join(map(_size, port.dims))}]"
    for index, symbol in enumerate(kernel.symbols):
        yield f"  s{index} = in{symbol.input}.shape[{symbol.axis}]"
    for index, axis in enumerate(kernel.axes):
        yield f"  for i{index} < {_size(axis.size)}{' (reduced)' if axis.reduced else ''}"
    for segment in kernel.segments:
        if kernel.split_axis is not None:
            start, stop = kernel.bounds(segment)[kernel.split_axis]
            yield f"  where {_size(start)} <= i{kernel.split_axis} < {_size(stop)}"
        for index, step in enumerate(segment.body):
            yield f"    %{index}: {step.element.name.lower()} = {_instruction(step)}"
        for store in segment.stores:
            yield f"    out{_access(store.access)} = %{store.instruction}"


def _instruction(step: Instruction) -> str:
    words = [step.op, *(f"%{arg}" for arg in step.args)]
    if step.access is not None:
        words.append(f"in{_access(step.access)}")
    if step.op == "constant":
        words.append(repr(step.value))
    if step.size is not None:
        words.append(_size(step.size))
    if step.into is not None:
        words.append(step.into.name.lower())
    return " ".join(words)


def _access(access: Access) -> str:
    terms = [_scaled(stride, f"i{axis}") for axis, stride in enumerate(access.strides) if stride.factor]
    if access.offset.factor or not terms:
        terms.append(_size(access.offset))
    return f"{access.port}[{' + '.join(terms)}]"


def _scaled(stride: Size, name: str) -> str:
    return name if stride == ONE else f"{_size(stride)}*{name}"


def _size(size: Size) -> str:
    factors = [f"s{symbol}" for symbol in size.symbols]
    if size.factor != 1 or not factors:
        factors.insert(0, str(size.factor))
    return "*".join(factors)
