"""Changing names, nodes and values: the ground floor of the Editor."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from typing import Any, Protocol

from graphopt.ir import name_references
from graphopt.ir._onnx_ir import onnx_ir
from graphopt.ir.attributes import make_attributes
from graphopt.ir.constants import IR_VERSION
from graphopt.ir.names import TakenNames
from graphopt.ir.provenance import label
from graphopt.ir.scopes import Scopes, bodies
from graphopt.ir.uses import is_read, read_instead, read_nothing, readers, replace_uses


class Listener(Protocol):
    """What an observer of edits may react to."""

    def replaced(self, old: onnx_ir.Value, new: onnx_ir.Value) -> None:
        """Every reader of ``old`` now reads ``new``, which is equal to it by contract."""


class GraphEditor:
    """What :class:`graphopt.ir.editor.Editor` does to names, nodes and values; it tells of the attributes."""

    def __init__(self, model: onnx_ir.Model) -> None:
        self.model = model
        self.scopes = Scopes(model)
        self.epoch = 0
        self.counts: Counter[str] = Counter()
        self.tally: Counter[tuple[str, str]] = Counter()
        self.listeners: list[Listener] = []
        self.declared_truly: Callable[[onnx_ir.Value], bool] = lambda output: True
        model.graph.meta[IR_VERSION] = model.ir_version
        self._taken = TakenNames(model)

    def _changed(self, kind: str) -> None:
        self.epoch += 1
        self.counts[kind] += 1

    def resync(self, kind: str) -> None:
        """Look at the model afresh after something else than this editor changed it.

        Args:
            kind: what the change counts as.
        """
        self.scopes = Scopes(self.model)
        self._taken = TakenNames(self.model)
        self._changed(kind)

    # Names -------------------------------------------------------------------------------

    def fresh_name(self, hint: str) -> str:
        """A value name that nothing in the model has: ``hint``, or ``hint_1`` and so on."""
        return self._taken.take_value(hint)

    def fresh_node_name(self, hint: str) -> str:
        """A node name that no node of the model has."""
        return self._taken.take_node(hint)

    def free_names(self, graph: onnx_ir.Graph) -> None:
        """Let others take the names of values and nodes of ``graph``, which is about to be removed."""
        for node in graph:
            self._taken.free_node(node)
        self._taken.free_values([*graph.inputs, *graph.initializers.values()])

    # Nodes -------------------------------------------------------------------------------

    def make_node(
        self,
        op_type: str,
        inputs: Sequence[onnx_ir.Value | None],
        attributes: Mapping[str, Any] | Iterable[onnx_ir.Attr] = (),
        *,
        domain: str = "",
        overload: str = "",
        outputs: int = 1,
        name: str,
    ) -> onnx_ir.Node:
        """A node that stands in no graph yet; :meth:`insert_before` or :meth:`append` puts it there.

        Args:
            attributes: plain Python values by name (``None`` leaves one out), or ready attributes.
            name: hint for the node's name; outputs are named after it.
        """
        node_name = self.fresh_node_name(name)
        values = [onnx_ir.Value(name=self.fresh_name(f"{node_name}_output_{i}")) for i in range(outputs)]
        return onnx_ir.Node(
            domain,
            op_type,
            inputs,
            make_attributes(attributes),
            overload=overload,
            outputs=values,
            name=node_name,
        )

    def discard(self, node: onnx_ir.Node) -> None:
        """Forget a node made by :meth:`make_node` that was never inserted."""
        read_nothing(node)
        self._taken.free_node(node)

    def insert_before(self, place: onnx_ir.Node, nodes: Sequence[onnx_ir.Node]) -> None:
        """Put ``nodes``, in order, right before ``place``."""
        graph = graph_of(place)
        graph.insert_before(place, nodes)
        self._adopt(nodes)
        self._changed("insert")

    def append(self, graph: onnx_ir.Graph, node: onnx_ir.Node) -> None:
        """Put ``node`` at the end of ``graph``."""
        graph.append(node)
        self._adopt([node])
        self._changed("insert")

    def move_after(self, place: onnx_ir.Node, nodes: Sequence[onnx_ir.Node]) -> None:
        """Move ``nodes`` of the same graph, in order, right behind ``place``."""
        graph = graph_of(place)
        graph.remove(nodes)
        graph.insert_after(place, nodes)
        self._changed("move")

    def arrange(self, graph: onnx_ir.Graph, nodes: Sequence[onnx_ir.Node]) -> None:
        """Put ``nodes``, all nodes of ``graph``, in this order, in which each comes after those it reads."""
        if list(graph) != list(nodes):
            graph.remove(nodes)
            graph.extend(nodes)
            self._changed("move")

    def interpose(self, value: onnx_ir.Value, node: onnx_ir.Node) -> None:
        """Put ``node``, which reads ``value``, right behind it; all that read ``value`` now read its output.

        Graphs go on returning ``value`` itself. Listeners are not told that one is the other: what is
        known of the output need not be so of ``value``.
        """
        producer, graph = value.producer(), value.graph
        if producer is not None:
            graph_of(producer).insert_after(producer, [node])
        else:
            assert graph is not None, f"value {value.name!r} stands in no graph"
            graph.insert_before(graph[0], [node])
        self._adopt([node])
        replace_uses(value, node.outputs[0], {node})
        self._changed("insert")

    def _adopt(self, nodes: Iterable[onnx_ir.Node]) -> None:
        for node in nodes:
            self.tally[node.domain, node.op_type] += 1
            if node.attributes and bodies(node):
                self.scopes.adopt(node)

    def remove(self, node: onnx_ir.Node) -> None:
        """Take ``node`` out of its graph. Nothing may read its outputs any more."""
        graph = graph_of(node)
        if any(map(is_read, node.outputs)):
            raise ValueError(f"node {node.name!r} can't be removed: something reads its outputs")
        read_nothing(node)
        take_out(graph, node)
        self.tally[node.domain, node.op_type] -= 1
        self._taken.free_node(node)
        self._changed("remove")

    def set_input(self, node: onnx_ir.Node, index: int, value: onnx_ir.Value | None) -> None:
        """Let input ``index`` of ``node`` read ``value``."""
        if index >= len(node.inputs):
            node.resize_inputs(index + 1)
        read_instead(node, {index: value})
        self._changed("input")

    def trim_inputs(self, node: onnx_ir.Node, size: int) -> None:
        """Drop the inputs of ``node`` from ``size`` on."""
        read_instead(node, dict.fromkeys(range(size, len(node.inputs))))
        node.resize_inputs(size)
        self._changed("input")

    def set_attribute(self, node: onnx_ir.Node, name: str, value: Any) -> None:
        """Set attribute ``name`` of ``node`` to a plain Python value; ``None`` removes it."""
        if value is None:
            node.attributes.pop(name, None)
        else:
            node.attributes.add(make_attributes({name: value})[0])
        self._changed("attribute")

    def give_output(self, node: onnx_ir.Node, index: int) -> onnx_ir.Value:
        """Let ``node`` also give its optional output ``index``, which it lacks."""
        had = len(node.outputs)
        if index >= had:
            node.resize_outputs(index + 1)
        for place in range(had, index):
            node.outputs[place].name = ""
        output = node.outputs[index]
        output.name = self.fresh_name(f"{node.name or node.op_type}_output_{index}")
        self._changed("output")
        return output

    def drop_output(self, node: onnx_ir.Node, index: int) -> None:
        """Let ``node`` leave out its optional output ``index``, which nothing may read."""
        output = node.outputs[index]
        assert not is_read(output) and not output.is_graph_output()
        self._taken.free_values([output])
        output.name, output.type, output.shape = "", None, None
        count = len(node.outputs)
        while count and not node.outputs[count - 1].name:
            count -= 1
        node.resize_outputs(count)
        self._changed("output")

    # Values ------------------------------------------------------------------------------

    def can_stand_for(self, old: onnx_ir.Value, new: onnx_ir.Value) -> bool:
        """Whether ``new`` can replace ``old`` without an Identity that keeps an interface name."""
        return not old.is_graph_output() or self._can_be_output(old, new)

    def _can_be_output(self, old: onnx_ir.Value, new: onnx_ir.Value, *, restores: bool = False) -> bool:
        producer, own = new.producer(), old.producer()
        return (
            producer is not None
            and own is not None
            and not new.is_graph_output()
            and (producer.graph is own.graph or producer.graph is None)
            and (restores or self.declared_truly(old) or all(reader is own for reader in readers(new)))
        )

    def replace(
        self,
        old: onnx_ir.Value,
        new: onnx_ir.Value,
        *,
        keep: Container[onnx_ir.Node] = frozenset(),
        restores: bool = False,
    ) -> None:
        """Let every reader of ``old``, in bodies too, read ``new``, but for the nodes in ``keep``.

        Where ``old`` is an output of its graph, the output keeps its name and declared type:
        ``new`` takes them over, or an Identity bears them when ``new`` can't (it is an input,
        an initializer, an output already, or of an outer graph; or others read it, who must not
        come to rely on a declaration that may be wrong).

        Args:
            restores: ``new`` was that output before, under the same declaration.
        """
        if old is new:
            return
        name_references.take_over(new, old, name=False)
        keeps_name = not old.is_graph_output() or self._can_be_output(old, new, restores=restores)
        replace_uses(old, new, keep)
        if old.is_graph_output():
            self._replace_output(old, new, keeps_name)
        self._changed("replace")
        for listener in self.listeners:
            listener.replaced(old, new)

    def _replace_output(self, old: onnx_ir.Value, new: onnx_ir.Value, keeps_name: bool) -> None:
        producer = old.producer()
        graph = producer.graph if producer is not None else old.graph
        assert graph is not None
        if keeps_name:
            self.take_over(new, old)
        else:
            identity = self.make_node("Identity", [new], name=f"{old.name}_identity")
            graph.append(identity)
            new = identity.outputs[0]
            self.take_over(new, old)
        for _ in range(graph.outputs.count(old)):
            graph.outputs[graph.outputs.index(old)] = new

    def copy_output(self, output: onnx_ir.Value) -> onnx_ir.Value:
        """Let the main graph return a copy of ``output``, under its name and as it is declared."""
        graph, producer = self.model.graph, output.producer()
        if producer is not None and not producer.name:  # messages go on calling it by its output
            producer.name = self.fresh_node_name(label(producer))
        node = self.make_node("Identity", [output], name=f"{output.name}_copy")
        self.append(graph, node)
        copy = node.outputs[0]
        self.take_over(copy, output)
        for index, value in enumerate(graph.outputs):
            if value is output:
                graph.outputs[index] = copy
        self._changed("output")
        return copy

    def take_over(self, new: onnx_ir.Value, old: onnx_ir.Value) -> None:
        """Give ``new`` the name and declarations of ``old``, which gets a fresh name.

        In bodies ``new`` keeps its own shape where ``old`` declares none: what a Loop that never runs
        gathers has the rank that onnxruntime can tell.
        """
        name = old.name
        assert name is not None
        self._taken.free_values([new])
        old.name = self.fresh_name(f"{name}_replaced")
        new.name = name
        if old.shape is not None or old.graph is self.model.graph:
            new.shape = old.shape
        new.type, new.doc_string = old.type, old.doc_string
        name_references.take_over(new, old, name=True)
        if old.metadata_props:
            new.metadata_props.update(old.metadata_props)

    def rename(self, value: onnx_ir.Value, hint: str) -> None:
        """Give ``value`` a free name like ``hint``."""
        before = value.name
        self._taken.free_values([value])
        value.name = self.fresh_name(hint)
        if before:
            name_references.rename(self.model, before, value.name)
        self._changed("rename")

    def declare(
        self, value: onnx_ir.Value, dtype: onnx_ir.DataType, dims: Sequence[int | str | None] | None
    ) -> None:
        """Declare that ``value`` is a tensor of ``dtype`` with these dims, ``None`` where unknown."""
        value.type, value.shape = onnx_ir.TensorType(dtype), None if dims is None else onnx_ir.Shape(dims)
        self._changed("declare")

    def forget(self, value: onnx_ir.Value, is_stale: Callable[[str], bool]) -> None:
        """Drop the metadata of ``value`` whose keys are stale."""
        stale = [key for key in value.metadata_props if is_stale(key)]
        for key in stale:
            del value.metadata_props[key]
        if stale:
            self._changed("forget")


def take_out(graph: onnx_ir.Graph, node: onnx_ir.Node) -> None:
    """Remove ``node`` from ``graph``. onnx-ir's own removal goes through all outputs of the graph."""
    node.graph = None
    graph._nodes.remove(node)


def graph_of(node: onnx_ir.Node) -> onnx_ir.Graph:
    """The graph that ``node`` stands in."""
    assert node.graph is not None, f"node {node.name!r} stands in no graph"
    return node.graph
