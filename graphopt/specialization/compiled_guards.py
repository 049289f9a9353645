"""Compile guards into one Python function that returns the index of the first one that holds.

The function is generated as source text; most of its work is comparing tuples. The function agrees with
:meth:`graphopt.profile.Guard.holds`, to which it delegates for anything but plain arrays.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from graphopt.profile import Guard
from graphopt.profile.value_profile import STRINGS, is_symbol
from graphopt.util.ort_array_conversion import numpy_type

#: Returns the index of the first guard that holds for feeds, or the number of guards if none does.
Dispatch = Callable[[Mapping[str, Any]], int]


def compile_guards(guards: Sequence[Guard]) -> Dispatch:
    """The dispatch function of ``guards``.

    >>> one, many = (
    ...     graphopt.Guard({"x": graphopt.ValueProfile("tensor(float)", (n, 8))}) for n in (1, "n")
    ... )
    >>> compile_guards([one, many])({"x": np.zeros((3, 8), np.float32)})
    1
    """

    def one_by_one(feeds: Mapping[str, Any]) -> int:
        return next((number for number, guard in enumerate(guards) if guard.holds(feeds)), len(guards))

    writer = _Writer(guards)
    code = compile(writer.text(), "<guards>", "exec")
    names: dict[str, Any] = {"one_by_one": one_by_one, **writer.constants}
    exec(code, names)
    found: Dispatch = names["choose"]
    return found


class _Writer:
    """Generates the function; ``constants`` are the objects to which its source refers."""

    def __init__(self, guards: Sequence[Guard]) -> None:
        self.constants: dict[str, Any] = {}
        self._guards = guards
        inputs = dict.fromkeys(name for guard in guards for name in guard.inputs)
        self._numbers = {name: number for number, name in enumerate(inputs)}
        self._everywhere = {name for name in inputs if all(name in guard.inputs for guard in guards)}

    def text(self) -> str:
        """The source of the function."""
        body = [f"if {self._condition(guard)}: return {number}" for number, guard in enumerate(self._guards)]
        lines = [*self._reads(), *body, f"return {len(self._guards)}"]
        indented = "\n".join(f"        {line}" for line in lines)
        return (
            "def choose(feeds):\n    try:\n"
            f"{indented}\n"
            "    except (AttributeError, TypeError):  # an input is missing, or not an array\n"
            "        return one_by_one(feeds)\n"
        )

    def _reads(self) -> Iterator[str]:
        """Statements that read each input, and its shape if a guard checks it."""
        shaped = {
            name
            for guard in self._guards
            for name, expected in guard.inputs.items()
            if expected.shape is not None
        }
        for name, number in self._numbers.items():
            yield f"x{number} = feeds.get({name!r})"
            if name in shaped:
                absent = "" if name in self._everywhere else f" if x{number} is not None else None"
                yield f"s{number} = x{number}.shape{absent}"

    def _condition(self, guard: Guard) -> str:
        if not all(expected.always for expected in guard.inputs.values()):
            return f"{self._constant(guard)}.holds(feeds)"
        terms = [*self._presence(guard), *self._sizes(guard), *self._types(guard), *self._contents(guard)]
        return " and ".join(terms) or "True"

    def _constant(self, item: Any) -> str:
        """The name of ``item`` in the source."""
        known = next((name for name, other in self.constants.items() if other is item), None)
        name = known or f"c{len(self.constants)}"
        self.constants[name] = item
        return name

    def _presence(self, guard: Guard) -> Iterator[str]:
        yield from (f"{name!r} not in feeds" for name in guard.absent)
        for name, expected in guard.inputs.items():
            if name not in self._everywhere or expected.shape is None:
                yield f"x{self._numbers[name]} is not None"

    def _sizes(self, guard: Guard) -> Iterator[str]:
        equal: dict[str, list[str]] = {}
        for name, expected in guard.inputs.items():
            shape = f"s{self._numbers[name]}"
            if expected.shape is None:
                continue
            if expected.is_static:
                yield f"{shape} == {expected.shape!r}"
                continue
            yield f"len({shape}) == {len(expected.shape)}"
            for axis, dim in enumerate(expected.shape):
                if isinstance(dim, int):
                    yield f"{shape}[{axis}] == {dim}"
                elif is_symbol(dim):
                    equal.setdefault(dim, []).append(f"{shape}[{axis}]")
        yield from (" == ".join(dims) for dims in equal.values() if len(dims) > 1)

    def _types(self, guard: Guard) -> Iterator[str]:
        for name, expected in guard.inputs.items():
            dtype = numpy_type(expected.type)
            if dtype is None:
                continue
            check = f".kind in {STRINGS!r}" if dtype.kind == "O" else f" == {self._constant(dtype)}"
            yield f"x{self._numbers[name]}.dtype{check}"

    def _contents(self, guard: Guard) -> Iterator[str]:
        for name, expected in guard.inputs.items():
            value = f"x{self._numbers[name]}"
            if expected.ints is None:
                continue
            if len(expected.ints) == 1:  # its size has already been checked
                yield f"{value}.item() == {expected.ints[0]}"
            else:
                yield f"{value}.ravel().tolist() == {list(expected.ints)}"
