"""A common view of Loops and Scans, and rebuilding them with other inputs and outputs."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence

from graphopt import ir
from graphopt.analysis.symbolic import Dim, symbols
from graphopt.context import Context
from graphopt.ops import traits
from graphopt.util.lazy_dataclass import dataclass

#: Attributes of Scan with an entry per scanned input, and per stacked output.
_BY_INPUT = ("scan_input_axes", "scan_input_directions")
_BY_OUTPUT = ("scan_output_axes", "scan_output_directions")


@dataclass(frozen=True)
class LoopForm:
    """A Loop or Scan whose inputs and outputs correspond to the inputs and outputs of its body.

    Attributes:
        node: the Loop or Scan.
        body: its body.
        head: the number of inputs of node and body before the carried values: 2 for a Loop.
        carried: the number of values carried from each iteration to the next.
    """

    node: ir.Node
    body: ir.Graph
    head: int
    carried: int

    @property
    def formals(self) -> Sequence[ir.Value]:
        """Inputs of the body with carried values."""
        return self.body.inputs[self.head : self.head + self.carried]

    @property
    def starts(self) -> Sequence[ir.Value | None]:
        """The initial carried values."""
        return self.node.inputs[self.head : self.head + self.carried]

    @property
    def ends(self) -> Sequence[ir.Value]:
        """Outputs of the body that are carried to the next iteration."""
        first = self.head // 2
        return self.body.outputs[first : first + self.carried]

    @property
    def results(self) -> Sequence[ir.Value]:
        """Outputs of the node that are the final carried values."""
        return self.node.outputs[: self.carried]

    @property
    def scanned(self) -> Sequence[ir.Value]:
        """Inputs of the body with slices of the scanned inputs."""
        return self.body.inputs[self.head + self.carried :]

    @property
    def rows(self) -> Sequence[ir.Value]:
        """Outputs of the body that are stacked."""
        return self.body.outputs[self.head // 2 + self.carried :]

    @property
    def gathered(self) -> Sequence[ir.Value]:
        """Outputs of the node that are stacked."""
        return self.node.outputs[self.carried :]


@dataclass(frozen=True)
class Trips:
    """Bounds of a trip count: ``least`` and ``most``; ``most`` is ``None`` without an upper bound."""

    least: int
    most: int | None


def loop_form(node: ir.Node, cx: Context, *, short: bool = False) -> LoopForm | None:
    """``node`` as a loop; ``None`` if it is not a loop, or inputs or outputs are missing.

    Args:
        short: whether the last outputs of a Loop may be missing.
    """
    body = node.attributes.get("body")
    if not traits.is_loop(node) or body is None or body.is_ref():
        return None
    graph = body.as_graph()
    if node.op_type == "Loop":
        head, carried = 2, max(len(node.inputs) - 2, 0)
    else:
        scanned = node.attributes.get("num_scan_inputs")
        if scanned is None or scanned.is_ref() or cx.version(node) < 9:
            return None
        head, carried = 0, len(node.inputs) - scanned.as_int()
    form = LoopForm(node, graph, head, carried)
    whole = len(graph.inputs) == max(len(node.inputs), head) and carried >= 0
    missing = len(graph.outputs) - len(node.outputs) - head // 2
    whole = whole and (missing == 0 or (missing > 0 and short and node.op_type == "Loop"))
    whole = whole and len(graph.outputs) >= carried + head // 2
    return form if whole and None not in node.inputs[head:] else None


def trips_of(form: LoopForm, cx: Context) -> Trips:
    """The known bounds of the trip count of ``form``."""
    node = form.node
    if node.op_type == "Scan":
        lengths = dict.fromkeys(_scan_lengths(form, cx))
        length = next(iter(lengths), None)
        return Trips(length, length) if len(lengths) == 1 and isinstance(length, int) else Trips(0, None)
    count, condition = (*node.inputs[:2], None, None)[:2]
    first = (1,) if condition is None else cx.static_ints(condition)
    if first == (0,):
        return Trips(0, 0)
    starts = first == (1,)
    if count is None:
        return Trips(int(starts), None)
    counts = cx.static_ints(count)
    if counts is None or len(counts) != 1:
        return Trips(0, None)
    most = max(counts[0], 0)
    if starts and most > 1 and cx.static_ints(form.body.outputs[0]) == (1,):
        return Trips(most, most)
    return Trips(min(most, int(starts)), most)


def _scan_lengths(form: LoopForm, cx: Context) -> Iterator[Dim | None]:
    """The number of slices of each scanned input."""
    sources = form.node.inputs[form.carried :]
    for source, axis in zip(sources, entries_of(form, "scan_input_axes", len(sources)), strict=True):
        shape = None if source is None else cx.shape(source)
        yield shape[axis] if shape is not None and -len(shape) <= axis < len(shape) else None


def entries_of(form: LoopForm, name: str, count: int) -> Sequence[int]:
    """The ``count`` integers of attribute ``name`` of a Scan, by default zeros."""
    attribute = form.node.attributes.get(name)
    return [0] * count if attribute is None else list(attribute.as_ints())


def symbols_outside(form: LoopForm, cx: Context) -> dict[str, None]:
    """The symbols in the shapes of outer values that a loop reads; they are equal in all iterations."""
    outside: dict[str, None] = {}
    for value in ir.reads(form.node):
        for dim in (*(cx.shape(value) or ()), *(cx.known_ints(value) or ())):
            outside |= dict.fromkeys(symbols(dim))
    return outside


def varying_symbol(element: tuple[Dim, ...], outside: Collection[str]) -> str | None:
    """A symbol in ``element`` that may have another value in the next iteration."""
    return next((name for dim in element for name in symbols(dim) if name not in outside), None)


def rebuild(
    form: LoopForm,
    carried: Sequence[int],
    scanned: Sequence[int],
    rows: Sequence[int],
    cx: Context,
    owner: str,
    more: Sequence[ir.Value] = (),
) -> ir.Node:
    """Replace the loop of ``form`` by a loop that keeps the listed values and also stacks ``more``.

    The removed outputs must be unused. Nodes of the body that only these outputs require are also removed.
    The outputs for ``more`` are the last outputs of the new node; they have no readers yet.
    """
    node, body, edit = form.node, form.body, cx.edit
    inputs = [*node.inputs[: form.head], *(form.starts[k] for k in carried)]
    inputs += [node.inputs[form.head + form.carried + k] for k in scanned]
    formals = [
        *body.inputs[: form.head],
        *(form.formals[k] for k in carried),
        *(form.scanned[k] for k in scanned),
    ]
    ends = [*body.outputs[: form.head // 2], *(form.ends[k] for k in carried)]
    ends += [_copied_if_input(form.rows[k], body, cx, owner) for k in rows]
    old = [*(form.results[k] for k in carried), *(form.gathered[k] for k in rows)]
    attributes = [_entries(attribute, scanned, rows) for attribute in node.attributes.values()]
    edit.set_outputs(body, [*ends, *more])
    _remove_unread(body, cx)
    edit.set_inputs(body, formals)
    made = edit.make_node(node.op_type, inputs, attributes, outputs=len(old) + len(more), name=ir.label(node))
    edit.set_attribute(node, "body", None)
    edit.insert_before(node, [made])
    edit.note_origin([made], [node], owner)
    for output, new in zip(old, made.outputs, strict=False):
        was_output = output.is_graph_output()
        edit.replace(output, new)
        if not was_output:
            edit.transfer_name(new, output)
    edit.remove(node)
    return made


def declare_shape(value: ir.Value, cx: Context) -> None:
    """Declare the inferred shape of ``value``, if none is declared.

    If a Loop has no trips, onnxruntime reads the rank of its stacked outputs from the shapes declared in the
    body, which passes may remove.
    """
    shape, dtype = cx.shape(value), cx.dtype(value)
    if value.shape is None and shape is not None and dtype is not None:
        cx.edit.declare(value, dtype, [dim if isinstance(dim, int) else None for dim in shape])


def _copied_if_input(row: ir.Value, body: ir.Graph, cx: Context, owner: str) -> ir.Value:
    """``row``, or a copy if it is an input of ``body``: onnxruntime may leave such rows unwritten."""
    if row not in body.inputs:
        return row
    identity = cx.edit.make_node("Identity", [row], name=f"{row.name}_row")
    cx.edit.append(body, identity)
    holder = cx.edit.scopes.holder(body)
    cx.edit.note_origin([identity], [] if holder is None else [holder], owner)
    copy = identity.outputs[0]
    copy.type, copy.shape = row.type, None if row.shape is None else row.shape.copy()
    return copy


def _remove_unread(body: ir.Graph, cx: Context) -> None:
    """Remove the unused nodes of ``body``, bottom up."""
    for node in list(reversed(body)):
        if not any(map(ir.is_read, node.outputs)) and not cx.has_to_run(node):
            cx.edit.remove_with_bodies(node)


def _entries(attribute: ir.Attr, scanned: Sequence[int], rows: Sequence[int]) -> ir.Attr:
    """``attribute`` with the entries of the kept inputs and outputs."""
    if attribute.name == "num_scan_inputs":
        return ir.make_attributes({attribute.name: len(scanned)})[0]
    kept = scanned if attribute.name in _BY_INPUT else rows if attribute.name in _BY_OUTPUT else None
    if kept is None:
        return attribute
    entries = attribute.as_ints()
    return ir.make_attributes({attribute.name: [entries[k] for k in kept]})[0]
