"""Options of the command line, created from the table :data:`graphopt.optimize_options.OPTIONS`."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

import click

from graphopt.cli.options import completion_values, option_relations
from graphopt.cli.options.parameter_types import Count, Seconds, Size, split_names, split_some
from graphopt.optimize_options import OPTIONS
from graphopt.util.option_table import Opt
from graphopt.util.parse_values import parse_ranges, parse_relations, parse_sizes

Function = Callable[..., Any]
#: Adds options to a function.
Decorator = Callable[[Function], Function]
Callback = Callable[[click.Context, click.Parameter, tuple[str, ...]], Any]


def parsed_by(parse: Callable[[Iterable[str]], Any]) -> Callback:
    """A callback that converts the texts of an option into a value by ``parse``."""
    return lambda context, parameter, texts: parse(texts)


def _pairs(texts: Iterable[str]) -> tuple[tuple[str, str], ...]:
    """Pairs of an input and an output."""
    if not (texts := tuple(texts)):
        return ()
    from graphopt.inputs.shared_buffer_pairs import parse_pair

    return tuple(map(parse_pair, texts))


#: The arguments of ``click.option`` by the notation of the value; options with other notations are text.
_KINDS: Mapping[str, dict[str, Any]] = {
    "RULE,...": {
        "multiple": True,
        "callback": split_some,
        "shell_complete": completion_values.rules,
        "metavar": "A,B",
    },
    "PASS": {"multiple": True, "shell_complete": completion_values.passes},
    "SCOPE": {"multiple": True},
    "IN=OUT": {"multiple": True, "callback": parsed_by(_pairs)},
    "KEY=VALUE": {"multiple": True, "shell_complete": completion_values.cuda_options},
    "NAME=SIZE": {"multiple": True, "callback": parsed_by(parse_sizes)},
    "NAME=FIRST:LAST": {"multiple": True, "callback": parsed_by(parse_ranges)},
    "NAME=EXPRESSION": {"multiple": True, "callback": parsed_by(parse_relations)},
    "SIZE": {"type": Size()},
    "TIME": {"type": Seconds()},
    "N": {"type": Count(0)},
    "N>0": {"type": Count(1), "metavar": "N"},
    "auto|cpu|cuda[:N]": {"shell_complete": completion_values.devices},
    "NAME,...": {
        "multiple": True,
        "callback": split_names,
        "shell_complete": completion_values.passes_and_rules,
        "metavar": "A,B",
    },
}


class TableOption(option_relations.Option):
    """An option of :data:`graphopt.optimize_options.OPTIONS`."""


def exclusions(command: click.Command) -> dict[tuple[str, str], str]:
    """The pairs of options of ``command`` that exclude each other, sorted, with the reasons."""
    found: dict[tuple[str, str], str] = {}
    for param in command.params:
        names = list(param.excludes) if isinstance(param, option_relations.Option) else []
        opt = OPTIONS.get(param.name or "") if isinstance(param, TableOption) else None
        names += [f"--{name}" for name in (opt.excludes if opt is not None else ())]
        for name in names:
            one, other = sorted((param.opts[0], option_relations.named(command, name).opts[0]))
            hint = param.hint if isinstance(param, option_relations.Option) else None
            found[one, other] = hint or (opt.hint if opt is not None else None) or ""
    return dict(sorted(found.items()))


def table_option(name: str, **changes: Any) -> Decorator:
    """The option ``name`` of the table; ``changes`` are arguments of ``click.option``."""
    opt = OPTIONS[name]
    kind = {"is_flag": True} if not opt.metavar else {"metavar": opt.metavar} | _KINDS[opt.metavar]
    text = f"{opt.help}{_default_text(opt)}"
    decorator: Decorator = click.option(
        opt.flag, name, **({"cls": TableOption, "default": None, "help": text} | kind | changes)
    )
    return decorator


def _default_text(opt: Opt) -> str:
    """The default of ``opt`` for the help; empty if the help omits it."""
    if opt.setting is None or opt.default in ((), False):
        return ""
    if opt.metavar == "TIME":
        return f"  [default: {opt.default:g}s]"
    if opt.metavar == "SIZE":
        exponent = min(max(opt.default.bit_length() - 1, 0) // 10, 3)
        return f"  [default: {opt.default >> 10 * exponent}{('', 'KiB', 'MiB', 'GiB')[exponent]}]"
    return f"  [default: {opt.flag.partition('/')[0].strip('-') if opt.default is True else opt.default}]"
