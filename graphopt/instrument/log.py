"""log: the PyTorch JIT's logging, for graphs.

A specification names passes, rules or their files, and graphs of operations, joined by ``:``. A plain name of
a pass prints the whole graph before and after it; a plain name of a rule prints the graph for the passes that
apply the rule (``DUMP``). ``>name`` prints each rewrite (``UPDATE``), and ``>>name`` adds remarks and
refusals (``DEBUG``). As in the JIT, both include ``DUMP`` for passes, but not for rules, because the graph
around a rule is that of its whole pass. The name of a graph (:mod:`graphopt.instrument.graph_text`) prints
the graph when an operation has created it, as text that parses again. Every line begins with
``[LEVEL file:line]``.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Sequence
from enum import IntEnum
from pathlib import Path
from types import CodeType
from typing import TextIO

from graphopt import ir
from graphopt.context import Action, Context, Refusal
from graphopt.errors import UsageError, unknown
from graphopt.instrument.graph_text import ALL_GRAPHS, GRAPHS, graph_text
from graphopt.instrument.inferred_type_text import known_types
from graphopt.passes.base import Pass
from graphopt.passes.instrumentation import PassInstrumentation
from graphopt.passes.own_rule import OwnRule
from graphopt.passes.pass_records import PassRecord
from graphopt.rewrite.rule import Rule


class Level(IntEnum):
    """Amount of logging."""

    DUMP = 1
    UPDATE = 2
    DEBUG = 3


def parse_log(spec: str, names: Iterable[str]) -> dict[str, Level]:
    """The level for each name in ``spec``.

    Args:
        spec: names with prefixes for their levels, such as ``dce:>peephole:>>transpose``.

    Raises:
        UsageError: a name is unknown (the message suggests the nearest), or there is no name.
    """
    names = list(names)
    levels: dict[str, Level] = {}
    for part in spec.split(":"):
        name = part.strip().lstrip(">")
        marks = len(part.strip()) - len(name)
        if marks > 2 or not name:
            raise UsageError(
                f"can't read the log specification {spec!r}", hint="write dce:>peephole:>>transpose"
            )
        name = name.removesuffix(".py")
        if name not in names and name.replace("_", "-") in names:
            name = name.replace("_", "-")
        if name not in names:
            raise unknown("pass, rule, rule file or graph", name, names, "graphopt passes lists all passes")
        levels[name] = Level(marks + 1)
    return levels


class Log(PassInstrumentation):
    """Prints the events that ``spec`` selects.

    Args:
        spec: described in the docstring of this module.
    """

    def __init__(self, spec: str, stream: TextIO, passes: Iterable[str], rules: Iterable[Rule]) -> None:
        self._stream = stream
        self._closed = False
        self._rules = {rule.name: rule for rule in rules}
        families = [rule.family for rule in self._rules.values()]
        passes = list(passes)
        self._levels = parse_log(spec, dict.fromkeys([*passes, *families, *self._rules, *GRAPHS, ALL_GRAPHS]))
        self._dumped = self._names_of_dumped(passes)
        self._pass = ""

    def before_pass(self, pass_: Pass, index: int, model: ir.Model, cx: Context) -> None:
        """Dump the graph before the pass."""
        self._pass = pass_.name
        self._dump(pass_, f"before {index} {pass_}:", model, cx)

    def after_pass(self, pass_: Pass, record: PassRecord, model: ir.Model, cx: Context) -> None:
        """Dump the graph after the pass."""
        self._dump(pass_, f"after {record.index} {pass_}:", model if record.changes else None, cx)

    def created_graph(self, name: str, model: ir.Model, detail: str) -> None:
        """Dump a graph that an operation created."""
        if name in self._levels or ALL_GRAPHS in self._levels:
            title = f"{GRAPHS[name]} ({detail}):" if detail else f"{GRAPHS[name]}:"
            self._print(Level.DUMP, _caller("log.py", "environment.py"), title, graph_text(model))

    def _dump(self, pass_: Pass, title: str, model: ir.Model | None, cx: Context) -> None:
        own = pass_.rule.name if isinstance(pass_, OwnRule) else ""
        if pass_.name in self._dumped or self._levels.get(own) == Level.DUMP:
            text = "(nothing changed)"
            if model is not None:
                text = ir.print_model(model, types=known_types(cx), full=True)
            self._print(Level.DUMP, _place(type(pass_).run.__code__), title, text)

    def rewrote(self, action: Action, root: ir.Node, made: list[ir.Node]) -> None:
        if self._level(action.owner) >= Level.UPDATE:
            new = "".join(f"\n  {ir.print_node(node)}" for node in made) or " nothing new"
            text = f"{action.index} {action.owner}: {root.op_type} {action.node} →{new}"
            self._print(Level.UPDATE, self._place_of(action.owner), text)

    def refused(self, refusal: Refusal) -> None:
        """Log the reason why a rule did not apply."""
        if self._level(refusal.rule) >= Level.DEBUG:
            value = f" ({refusal.value})" if refusal.value else ""
            text = f"{refusal.rule} leaves {refusal.node} alone: {refusal.reason}{value}"
            self._print(Level.DEBUG, self._place_of(refusal.rule), text)

    def said(self, owner: str, message: Callable[[], str]) -> None:
        if self._level(owner) >= Level.DEBUG:
            self._print(Level.DEBUG, self._place_of(owner), f"{owner}: {message()}")

    def _level(self, owner: str) -> int:
        """The level for ``owner`` within the current pass."""
        rule = self._rules.get(owner)
        names = [self._pass, owner, rule.family if rule else ""]
        return max(self._levels.get(name, 0) for name in names)

    def _names_of_dumped(self, passes: Sequence[str]) -> set[str]:
        """The passes to dump: the named passes, and the passes that apply rules with a plain name."""
        plain = {name for name, level in self._levels.items() if level == Level.DUMP}
        applied = {rule.pass_ for rule in self._rules.values() if rule.name in plain or rule.family in plain}
        return applied.union(name for name in passes if name in self._levels)

    def _place_of(self, owner: str) -> str:
        """The definition of a rule; for a pass, the line of the call."""
        rule = self._rules.get(owner)
        if rule is not None:
            return _place(rule.replace.__code__)
        return _caller("log.py", "context.py")

    def _print(self, level: Level, place: str, *texts: str) -> None:
        lines = [f"[{level.name} {place}] {line}" for text in texts for line in text.rstrip("\n").split("\n")]
        if not self._closed:
            try:
                print(*lines, sep="\n", file=self._stream)
            except OSError:  # a closed pipe is not a failure of the pass
                self._closed = True


def _caller(*skipped: str) -> str:
    """The line of the innermost call outside of the files ``skipped``."""
    frame = sys._getframe(1)
    while frame.f_back is not None and Path(frame.f_code.co_filename).name in skipped:
        frame = frame.f_back
    return f"{Path(frame.f_code.co_filename).name}:{frame.f_lineno}"


def _place(code: CodeType) -> str:
    return f"{Path(code.co_filename).name}:{code.co_firstlineno}"
