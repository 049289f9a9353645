"""Bounds checks: kernels fail before any access out of bounds.

Indices may be out of bounds if a model declares wrong shapes, such as a Split with parts larger than its
input. Accesses that are provably in bounds for all sizes have no check.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from functools import cache
from importlib import resources

from graphopt.fusion.c_code.size_variables import SizeVariables
from graphopt.fusion.loops.ir import ZERO, Access, Kernel, Port, Segment, Size, live_instructions, product
from graphopt.util.lazy_dataclass import dataclass


@dataclass(frozen=True)
class _Range:
    """A loop from ``start`` to ``stop`` that advances an access by ``stride`` elements."""

    stride: Size
    start: Size
    stop: Size


@cache
def check_functions() -> str:
    """The functions in C that the checks of bounds and of inputs call."""
    return (resources.files(__package__) / "checks.h").read_text(encoding="utf-8")


def checks(kernel: Kernel, sizes: SizeVariables, labels: Sequence[str] = ()) -> Iterator[str]:
    """Statements of ``NAME_main`` that fail if a loop or an access is out of bounds; often none.

    Args:
        labels: the names of the inputs in messages, by default ``input 0`` and so on.
    """
    labels = labels or [f"input {index}" for index in range(len(kernel.inputs))]
    output_labels = [f"output {index}" for index in range(len(kernel.outputs))]
    for segment in kernel.segments:
        yield from _segment_check(kernel, segment, sizes)
        results = [store.instruction for store in segment.stores]
        steps = [segment.body[index] for index in live_instructions(segment.body, results)]
        loads = [step.access for step in steps if step.access is not None]
        stores = [store.access for store in segment.stores]
        for verb, names, ports, accesses in (
            ("read", labels, kernel.inputs, loads),
            ("write", output_labels, kernel.outputs, stores),
        ):
            for access in dict.fromkeys(accesses):
                message = f"it would {verb} outside of {names[access.port]}"
                yield from _access_check(kernel, segment, access, ports[access.port], message, sizes)


def _segment_check(kernel: Kernel, segment: Segment, sizes: SizeVariables) -> Iterator[str]:
    """Check that a segment is within its axis."""
    if kernel.split_axis is None:
        return
    (start, stop), end = kernel.bounds(segment)[kernel.split_axis], kernel.axes[kernel.split_axis].size
    if start == ZERO and stop == end:
        return
    known = [size.constant for size in (start, stop, end) if size.constant is not None]
    if len(known) == 3 and 0 <= known[0] <= known[1] <= known[2]:
        return
    first, last, whole = map(sizes.c, (start, stop, end))
    yield f"    if ({first} < 0 || {first} > {last} || {last} > {whole}) {{"
    yield from _fail("it would leave its loops")


def _access_check(
    kernel: Kernel, segment: Segment, access: Access, port: Port, message: str, sizes: SizeVariables
) -> Iterator[str]:
    ranges = _ranges(kernel, segment, access)
    offset, elements = access.offset, product(port.dims)
    if _inside(ranges, offset, elements):
        return
    rows = [
        f"{{{sizes.c(each.stride)}, {sizes.c(each.start)}, {sizes.c(each.stop)}}}" for each in ranges
    ] or ["{0, 0, 1}"]
    loops = f"(const int64_t[][3]){{{', '.join(rows)}}}"
    yield f"    if (!go_inside({loops}, {len(rows)}, {sizes.c(offset)}, {sizes.c(elements)})) {{"
    yield from _fail(message)


def _fail(message: str) -> Iterator[str]:
    yield f'        go_fail(call, "{message}");'
    yield "        return 1;"
    yield "    }"


def _ranges(kernel: Kernel, segment: Segment, access: Access) -> list[_Range]:
    """The loops around an access, except reduced loops in which it is invariant: such loops may be empty."""
    loops = zip(kernel.axes, access.strides, kernel.bounds(segment), strict=True)
    return [_Range(stride, *bounds) for axis, stride, bounds in loops if stride.factor or not axis.reduced]


def _inside(ranges: list[_Range], offset: Size, elements: Size) -> bool:
    """Whether an access is provably in bounds for all sizes."""
    if any(each.stride.factor < 0 for each in ranges) or offset.constant is None or offset.factor < 0:
        return _inside_by_numbers(ranges, offset, elements)
    top, steps = offset.constant, []
    for each in ranges:
        step, stop = each.stride.constant, each.stop.constant
        if step is not None and stop is not None:
            top += step * max(stop - 1, 0)
        elif each.stride.factor:
            steps.append(each)
    # Indices so far are less than `bound`; a next stride of at least `bound` keeps them distinct.
    bound = Size(top + 1)
    positive = frozenset(symbol for each in ranges for symbol in each.stop.symbols)
    for each in sorted(steps, key=lambda each: (len(each.stride.symbols), each.stride.factor)):
        if not _at_least(each.stride, bound, positive):
            return False
        bound = each.stride * each.stop
    return _at_least(elements, bound, positive) or _inside_by_numbers(ranges, offset, elements)


def _inside_by_numbers(ranges: list[_Range], offset: Size, elements: Size) -> bool:
    """Whether an access is in bounds, for constant sizes."""
    low = high = offset.constant
    whole = elements.constant
    if low is None or high is None or whole is None:
        return False
    for each in ranges:
        step, start, stop = each.stride.constant, each.start.constant, each.stop.constant
        if start is not None and stop is not None and start >= stop:
            return True
        if step == 0:
            continue
        if step is None or start is None or stop is None:
            return False
        low += min(step * start, step * (stop - 1))
        high += max(step * start, step * (stop - 1))
    return low >= 0 and high < whole


def _at_least(a: Size, b: Size, positive: frozenset[int]) -> bool:
    """Whether ``a >= b`` is provable, given that the symbols ``positive`` are at least 1."""
    left = Counter(a.symbols)
    left.subtract(b.symbols)
    more = all(count >= 0 and (not count or symbol in positive) for symbol, count in left.items())
    return more and a.factor >= b.factor
