"""Flags for options of the CUDA provider (:data:`graphopt.util.cuda_options.CUDA_OPTIONS`).

All of them become values of the option ``cuda_options`` of ``optimize``, as ``--cuda-option`` does.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import click

from graphopt.cli.options.parameter_types import Size
from graphopt.cli.options.table_options import Decorator
from graphopt.util.cuda_options import CUDA_OPTIONS, CudaOption

#: The option of the table that collects the values of all flags.
_COLLECTED = "cuda_options"
#: Prefix of the parameters of flags.
_PREFIX = "cuda_option_"


def flag_options() -> Iterator[Decorator]:
    """The command-line options for all options of the provider that have a flag."""
    for name, option in CUDA_OPTIONS.items():
        if option.flag:
            kind: dict[str, Any] = {"is_flag": True}
            if option.is_size:
                kind = {"type": Size(), "metavar": option.metavar}
            elif not option.is_switch:
                kind = {"type": click.Choice(option.choices, case_sensitive=False)}
            default = f"  [default: {_default_text(name, option)}]"
            yield click.option(option.flag, _PREFIX + name, default=None, help=option.help + default, **kind)


def collect_flags(values: dict[str, Any]) -> str | None:
    """Move the values of flags in ``values`` to the option ``cuda_options``; returns the first flag."""
    if _COLLECTED not in values:
        return None
    texts = list(values[_COLLECTED] or ())
    flags = ["--cuda-option"] * bool(texts)
    for name, option in CUDA_OPTIONS.items():
        value = values.pop(_PREFIX + name, None)
        if value is not None:
            texts.append(f"{name}={int(value) if isinstance(value, bool) else value}")
            on, _, off = option.flag.partition("/")
            flags.append(off if value is False else on)
    values[_COLLECTED] = tuple(texts)
    return next(iter(flags), None)


def _default_text(name: str, option: CudaOption) -> str:
    """The default of a flag, in the notation of the command line."""
    if name == "use_tf32":
        return "no-tf32; of bench: tf32"
    if option.is_switch:
        return "on" if option.default == "1" else "off"
    return option.default_name
