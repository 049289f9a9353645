"""Values of options of ``optimize`` as words of the command line."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from graphopt.optimize_options import OPTIONS

if TYPE_CHECKING:
    from graphopt.inputs.feeds import InputOptions
    from graphopt.tuning.tuner import Tune


def as_flags(name: str, value: Any) -> list[str]:
    """The words that set the option ``name``, which is not a setting, to ``value``.

    Args:
        name: an option with a flag, ``inputs`` without files, or ``tune`` for at most one set of shapes.
        value: its value.
    """
    if name == "inputs":
        return list(_of_inputs(value))
    if name == "tune":
        return list(_of_tune(value))
    flag = OPTIONS[name].flag.partition("/")[0]
    if value is True:
        return [flag]
    if isinstance(value, Mapping):
        return [word for key, item in value.items() for word in (flag, f"{key}={_range(item)}")]
    if isinstance(value, list | tuple):
        return [word for item in value for word in (flag, str(item))]
    return [flag, str(value)]


def _range(item: Any) -> str:
    """A size, or a range of sizes whose end may be open."""
    if not isinstance(item, list | tuple):
        return str(item)
    first, last = item
    return f"{first}:{'' if last is None else last}"


def _of_inputs(inputs: InputOptions) -> Iterator[str]:
    for name, shape in inputs.shapes.items():
        yield from ("--input-shape", f"{name}:{'x'.join(map(str, shape))}")
    yield from ("--seed", str(inputs.seed))


def _of_tune(tune: Tune) -> Iterator[str]:
    yield from ("--tune", "--budget", f"{tune.budget:g}s")
    if tune.threads is not None:
        yield from ("--threads", str(tune.threads))
