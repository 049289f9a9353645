"""A printed model, and what changed between two of them.

Lines are told apart by the values that they define, not by their places: a diff is linear in the
model, and a node that merely reads another value instead is not shown as removed and added.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Literal

from graphopt import ir
from graphopt.context import Context
from graphopt.ir.text import Types

_DEFINED = re.compile(r"(input |constant |output )?%(\S+?)(?=[:,]?\s|$)")
_OPERAND = re.compile(r"%[A-Za-z0-9_./:~-]+")

Key = tuple[object, ...]


@dataclass(frozen=True)
class Line:
    """One line of a printed model.

    Attributes:
        text: as it is shown, with types.
        bare: without types, for comparisons: what is known of types grows over time.
        node: the node that it prints, if it prints one.
    """

    text: str
    bare: str
    node: ir.Node | None = None

    @property
    def scope(self) -> str:
        """The module that the node comes from: its name up to the last slash."""
        name = self.node.name if self.node is not None else None
        return name.rpartition("/")[0].strip("/") if name else ""


class Snapshot:
    """A model as it was printed at one moment.

    Attributes:
        lines: by key, in the order of printing.
        names: how each value is shown where it is read: by its name, or as a small constant.
    """

    def __init__(self, model: ir.Model, cx: Context | None) -> None:
        types = None if cx is None else known_types(cx)
        shown = ir.print_model(model, types=types).splitlines()
        bare = ir.print_model(model, types=lambda value: None).splitlines()
        naming = ir.Names.of(model)
        self.names: dict[ir.Value, str] = {}
        nodes: dict[str, ir.Node] = {}
        for graph in ir.graphs_of(model):
            for value in (*graph.inputs, *graph.initializers.values()):
                self.names[value] = _operand(value, naming)
            for node in graph:
                for output in node.outputs:
                    self.names[output] = _operand(output, naming)
                    nodes.setdefault(naming(output), node)
        self.lines: dict[Key, Line] = {}
        path: list[
            str
        ] = []  # names, not keys: a key that holds the keys around it is hashed in 2^depth steps
        owner = ""
        for text, plain in zip(shown, bare, strict=True):
            stripped = plain.strip()
            match = _DEFINED.match(stripped)
            is_node = match is not None and not match[1]
            key: Key
            if stripped == "}":
                key = (tuple(path), "end")
                owner = path.pop().partition(" ")[0]
            elif match is not None:
                key = (tuple(path), match[1], match[2])
                owner = match[2]
            elif stripped.endswith("{"):
                path.append(f"{owner} {stripped}")
                key = (tuple(path), "begin")
            else:
                key = (tuple(path), stripped)
            self.lines[key] = Line(text, plain, nodes.get(f"%{match[2]}") if match and is_node else None)

    def __str__(self) -> str:
        return "".join(f"{line.text}\n" for line in self.lines.values())


@dataclass(frozen=True)
class Change:
    """A line of a diff: gone, come, or still there but reading other values."""

    kind: Literal["-", "+", " "]
    line: Line


def difference(before: Snapshot, after: Snapshot, renamed: Mapping[str, str]) -> Iterator[Change]:
    """What changed from ``before`` to ``after``, in the order of the model.

    Args:
        renamed: shown names of values that were replaced, and of what is read instead: lines that
            changed by nothing else come with the kind ``" "``.
    """
    gone = [key for key in before.lines if key not in after.lines]
    places = {key: index for index, key in enumerate(before.lines)}
    pending = iter(gone)
    removed = next(pending, None)
    for key, line in after.lines.items():
        old = before.lines.get(key)
        if old is None:
            yield Change("+", line)
            continue
        while removed is not None and places[removed] < places[key]:
            yield Change("-", before.lines[removed])
            removed = next(pending, None)
        if old.bare != line.bare:
            if _substituted(old.bare, renamed) == _substituted(line.bare, renamed):
                yield Change(" ", line)
            else:
                yield Change("-", old)
                yield Change("+", line)
    while removed is not None:
        yield Change("-", before.lines[removed])
        removed = next(pending, None)


def known_types(cx: Context) -> Types:
    """A function that tells what is known of a value's type, such as ``f32[B,4]``."""

    def text(value: ir.Value) -> str | None:
        dtype, shape = cx.dtype(value), cx.shape(value)
        if dtype is None and shape is None:
            return ir.declared_type(value)
        return ir.type_text(dtype, shape)

    return text


def _operand(value: ir.Value, naming: ir.Names) -> str:
    """What the printer writes where ``value`` is read."""
    tensor = ir.constant_of(value)
    text = "" if tensor is None else ir.constant_text(tensor)
    return text if text.endswith("}") else naming(value)


def _substituted(text: str, renamed: Mapping[str, str]) -> str:
    return _OPERAND.sub(lambda match: renamed.get(match[0], match[0]), text)
