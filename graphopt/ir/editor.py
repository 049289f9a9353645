"""The Editor: the only interface that changes a model.

It keeps names unique and the signature intact, counts edits, transfers provenance, and notifies listeners,
so that analyses stay up to date.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from typing import Any, Protocol

import numpy as np

from graphopt.ir import name_references, provenance
from graphopt.ir._onnx_ir import onnx_ir
from graphopt.ir.attributes import make_attributes
from graphopt.ir.constants import IR_VERSION
from graphopt.ir.contents import contents_of
from graphopt.ir.names import TakenNames
from graphopt.ir.provenance import label
from graphopt.ir.schemas import operator_schema
from graphopt.ir.scopes import Scopes, bodies, normal_imports, with_bodies
from graphopt.ir.uses import is_read, read_instead, read_nothing, readers, replace_uses, replace_within


class Listener(Protocol):
    """An observer of edits."""

    def replaced(self, old: onnx_ir.Value, new: onnx_ir.Value) -> None:
        """All readers of ``old`` now read ``new``, which is equal to it by contract."""


class ConstantRefused(Exception):
    """A graph does not support constants of a type. See :meth:`Editor.supports_constant`."""


def _tensor(data: np.ndarray | np.generic | onnx_ir.TensorProtocol) -> onnx_ir.TensorProtocol:
    """``data`` as a tensor in native byte order."""
    if not isinstance(data, np.ndarray | np.generic):
        return data
    array = np.asarray(data)
    return onnx_ir.Tensor(array if array.dtype.isnative else array.astype(array.dtype.newbyteorder("=")))


class Editor:
    """The only interface that changes ``model``.

    Attributes:
        epoch: increases with every edit; a cache filled in another epoch is stale.
        counts: number of edits by kind.
        tally: nodes added minus nodes removed, by domain and operator, since it was last cleared.
        listeners: notified of replaced values.
        declared_truly: whether the declared shape of an output is known to be correct; real models contain
            wrong shapes, which onnxruntime trusts. By default, all shapes are trusted; shape facts replace
            this function.
    """

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
        self._referenced: tuple[int, frozenset[str]] = (-1, frozenset())

    def _changed(self, kind: str) -> None:
        self.epoch += 1
        self.counts[kind] += 1

    def resync(self, kind: str) -> None:
        """Collect scopes and names again after a change of the model that bypassed this editor.

        Args:
            kind: the kind of edit that the change counts as.
        """
        self.scopes = Scopes(self.model)
        self._taken = TakenNames(self.model)
        self._changed(kind)

    # Names -------------------------------------------------------------------------------

    def fresh_name(self, hint: str) -> str:
        """An unused value name: ``hint``, or ``hint_1`` and so on."""
        return self._taken.take_value(hint)

    def fresh_node_name(self, hint: str) -> str:
        """An unused node name: ``hint``, or ``hint_1`` and so on."""
        return self._taken.take_node(hint)

    def free_names(self, graph: onnx_ir.Graph) -> None:
        """Release the names of values and nodes of ``graph``, which is about to be removed."""
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
        """Create a node outside of any graph, to be inserted by :meth:`insert_before` or :meth:`append`.

        Args:
            op_type: operator.
            inputs: operands.
            attributes: Python values by name (``None`` omits one), or attributes.
            domain: the operator's domain.
            overload: the function's overload.
            outputs: the number of outputs.
            name: hint for the node's name, from which the names of outputs are derived.
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
        """Discard a node from :meth:`make_node` that was never inserted."""
        read_nothing(node)
        self._taken.free_node(node)

    def insert_before(self, place: onnx_ir.Node, nodes: Sequence[onnx_ir.Node]) -> None:
        """Insert ``nodes``, in order, directly before ``place``."""
        graph = graph_of(place)
        graph.insert_before(place, nodes)
        self._adopt(nodes)
        self._changed("insert")

    def append(self, graph: onnx_ir.Graph, node: onnx_ir.Node) -> None:
        """Insert ``node`` at the end of ``graph``."""
        graph.append(node)
        self._adopt([node])
        self._changed("insert")

    def move_after(self, place: onnx_ir.Node, nodes: Sequence[onnx_ir.Node]) -> None:
        """Move ``nodes`` of the same graph, in order, directly after ``place``."""
        graph = graph_of(place)
        graph.remove(nodes)
        graph.insert_after(place, nodes)
        self._changed("move")

    def reorder(self, graph: onnx_ir.Graph, nodes: Sequence[onnx_ir.Node]) -> None:
        """Order the nodes of ``graph`` as ``nodes``, which is a topological order of all of them."""
        if list(graph) != list(nodes):
            graph.remove(nodes)
            graph.extend(nodes)
            self._changed("move")

    def interpose(self, value: onnx_ir.Value, node: onnx_ir.Node) -> None:
        """Insert ``node``, a reader of ``value``, between ``value`` and its other readers.

        Graph outputs remain ``value`` itself. Listeners are not notified: facts about the output of ``node``
        need not hold for ``value``.
        """
        producer, graph = value.producer(), value.graph
        if producer is not None:
            graph_of(producer).insert_after(producer, [node])
        else:
            assert graph is not None, f"value {value.name!r} is in no graph"
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
        """Remove ``node``, whose outputs must be unread, from its graph."""
        graph = graph_of(node)
        if any(map(is_read, node.outputs)):
            raise ValueError(f"node {node.name!r} can't be removed: its outputs are read")
        read_nothing(node)
        take_out(graph, node)
        self.tally[node.domain, node.op_type] -= 1
        self._taken.free_node(node)
        self._changed("remove")

    def set_input(self, node: onnx_ir.Node, index: int, value: onnx_ir.Value | None) -> None:
        """Set input ``index`` of ``node`` to ``value``."""
        if index >= len(node.inputs):
            node.resize_inputs(index + 1)
        read_instead(node, {index: value})
        self._changed("input")

    def trim_inputs(self, node: onnx_ir.Node, size: int) -> None:
        """Remove the inputs of ``node`` beyond the first ``size``."""
        read_instead(node, dict.fromkeys(range(size, len(node.inputs))))
        node.resize_inputs(size)
        self._changed("input")

    def set_attribute(self, node: onnx_ir.Node, name: str, value: Any) -> None:
        """Set attribute ``name`` of ``node`` to a Python value; ``None`` removes it."""
        if value is None:
            node.attributes.pop(name, None)
        else:
            node.attributes.add(make_attributes({name: value})[0])
        self._changed("attribute")

    def add_node_output(self, node: onnx_ir.Node, index: int) -> onnx_ir.Value:
        """Add the optional output ``index`` to ``node``."""
        count = len(node.outputs)
        if index >= count:
            node.resize_outputs(index + 1)
        for place in range(count, index):
            node.outputs[place].name = ""
        output = node.outputs[index]
        output.name = self.fresh_name(f"{node.name or node.op_type}_output_{index}")
        self._changed("output")
        return output

    def remove_node_output(self, node: onnx_ir.Node, index: int) -> None:
        """Remove the optional output ``index``, which must be unread, from ``node``."""
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

    def can_replace(self, old: onnx_ir.Value, new: onnx_ir.Value) -> bool:
        """Whether ``new`` can replace ``old`` without an Identity that keeps the name of an output."""
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
        """Replace ``old`` by ``new`` in all its readers, including readers in bodies.

        An output of the graph keeps its name and declared type: they are transferred to ``new``, or to an
        Identity of ``new``. The Identity is required if ``new`` is an input, an initializer, already an
        output, or a value of an outer graph, or if it has other readers, which must not rely on a
        declaration that may be wrong.

        Args:
            old: the replaced value.
            new: its replacement.
            keep: nodes that continue to read ``old``.
            restores: whether ``new`` was the graph output before ``old``, with the same declaration.
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
        """Replace ``output`` of the main graph by a copy with its name and declaration."""
        graph, producer = self.model.graph, output.producer()
        if producer is not None and not producer.name:  # messages name it by its output
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
        """Transfer the name and declarations of ``old`` to ``new``; ``old`` has a fresh name afterwards.

        In bodies, ``new`` keeps its own shape if ``old`` does not declare one: the shape determines the rank
        of the scan outputs of a Loop without iterations.
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
        """Rename ``value`` to an unused name: ``hint``, or ``hint_1`` and so on."""
        before = value.name
        self._taken.free_values([value])
        value.name = self.fresh_name(hint)
        if before:
            name_references.rename(self.model, before, value.name)
        self._changed("rename")

    def declare(
        self, value: onnx_ir.Value, dtype: onnx_ir.DataType, dims: Sequence[int | str | None] | None
    ) -> None:
        """Declare ``value`` as a tensor of ``dtype`` with ``dims``, ``None`` for an unknown dim or rank."""
        value.type, value.shape = onnx_ir.TensorType(dtype), None if dims is None else onnx_ir.Shape(dims)
        self._changed("declare")

    def remove_metadata(self, value: onnx_ir.Value, is_stale: Callable[[str], bool]) -> None:
        """Remove the metadata of ``value`` with stale keys."""
        stale = [key for key in value.metadata_props if is_stale(key)]
        for key in stale:
            del value.metadata_props[key]
        if stale:
            self._changed("forget")

    # Constants ---------------------------------------------------------------------------

    def constant(
        self, graph: onnx_ir.Graph, data: np.ndarray | np.generic | onnx_ir.TensorProtocol, name: str
    ) -> onnx_ir.Value:
        """Create a constant of ``graph`` with the given contents.

        The constant is an initializer. In functions, which have no initializers, and below IR version 4,
        where initializers are inputs, it is a Constant node at the start of the graph.

        Raises:
            ConstantRefused: the function's opset has no Constant of this type.
        """
        tensor = _tensor(data)
        if self.model.ir_version < 4 or self.scopes.function(graph) is not None:
            return self.constant_node(graph, tensor, name)
        value = onnx_ir.Value(
            name=self.fresh_name(name),
            type=onnx_ir.TensorType(tensor.dtype),
            shape=onnx_ir.Shape(tensor.shape.numpy()),
            const_value=tensor,
        )
        graph.register_initializer(value)
        self._note_constant(value, tensor, graph)
        self._changed("constant")
        return value

    def _note_constant(
        self, value: onnx_ir.Value, tensor: onnx_ir.TensorProtocol, graph: onnx_ir.Graph
    ) -> None:
        contents = contents_of(self.model)
        if contents is not None:
            contents.note_constant(value, tensor, graph)

    def constant_node(
        self, graph: onnx_ir.Graph, data: np.ndarray | np.generic | onnx_ir.TensorProtocol, name: str
    ) -> onnx_ir.Value:
        """Like :meth:`constant`, but always a Constant node at the start of ``graph``."""
        tensor = _tensor(data)
        if not self.supports_constant(graph, tensor.dtype):
            raise ConstantRefused(f"the function's opset has no Constant of type {tensor.dtype.name.lower()}")
        node = self.make_node("Constant", [], {"value": tensor}, name=name)
        value = node.outputs[0]
        self.rename(value, name)
        value.type, value.shape = onnx_ir.TensorType(tensor.dtype), onnx_ir.Shape(tensor.shape.numpy())
        value.const_value = tensor
        first = next(iter(graph), None)
        if first is None:
            graph.append(node)
        else:
            graph.insert_before(first, node)
        self._note_constant(value, tensor, graph)
        self._changed("constant")
        return value

    def expose(self, constants: Mapping[onnx_ir.Node, onnx_ir.TensorProtocol]) -> None:
        """Convert Constant nodes, which may be in bodies, to initializers of the main graph.

        Below IR version 4, they also become inputs, like all initializers. They have the names of the nodes'
        outputs; if several bodies use a name, only the first constant keeps it.
        """
        graph, named = self.model.graph, []
        for node, tensor in constants.items():
            output = node.outputs[0]
            value = onnx_ir.Value(
                name=self.fresh_name("constant"),
                type=onnx_ir.TensorType(tensor.dtype),
                shape=onnx_ir.Shape(tensor.shape.numpy()),
                const_value=tensor,
                metadata_props=dict(output.metadata_props),
            )
            self.replace(output, value)
            self.remove(node)
            named.append((value, output.name or "constant"))
        for value, name in named:
            self.rename(value, name)
            graph.register_initializer(value)
            if self.model.ir_version < 4:
                graph.inputs.append(value)
            self._changed("constant")

    def supports_constant(
        self, graph: onnx_ir.Graph, dtype: onnx_ir.DataType, version: int | None = None
    ) -> bool:
        """Whether ``graph`` supports a new constant of ``dtype``.

        Constants of functions are nodes; before opset 9, Constant supports floating-point types only. In
        other graphs, runtimes convert Constant nodes to initializers without checking their types.

        Args:
            graph: the graph.
            dtype: element type of the constant.
            version: opset version to assume for the graph; by default its own.
        """
        if self.scopes.function(graph) is None:
            return True
        version = version or normal_imports(self.scopes.imports(graph)).get("", 0)
        schema = operator_schema("", "Constant", version)
        return schema is None or f"tensor({dtype.name.lower()})" in schema.outputs[0].types

    def supports_constants_of(self, graph: onnx_ir.Graph, body: onnx_ir.Graph) -> bool:
        """Whether ``graph`` supports the initializers of ``body``, which :meth:`inline_body` moves there."""
        return all(
            value.dtype is None or self.supports_constant(graph, value.dtype)
            for value in body.initializers.values()
        )

    def remove_initializer(self, value: onnx_ir.Value) -> None:
        """Remove an unread initializer; below IR version 4, its input too.

        An initializer that an annotation or training info refers to is kept.
        """
        if self.is_named(value):
            return
        graph = value.graph
        assert graph is not None and value.name is not None
        del graph.initializers[value.name]
        if value.is_graph_input():
            graph.inputs.remove(value)
        self._taken.free_values([value])
        self._changed("constant")

    def is_named(self, value: onnx_ir.Value) -> bool:
        """Whether an annotation or training info refers to ``value`` by name, so that it must be kept."""
        if not name_references.has_names(self.model):
            return False
        if self._referenced[0] != self.epoch:
            self._referenced = self.epoch, name_references.named(self.model)
        return value.name in self._referenced[1]

    def to_input(self, value: onnx_ir.Value) -> None:
        """Convert an initializer of the main graph to an input, the last one if it is not an input yet."""
        graph, tensor = self.model.graph, value.const_value
        assert tensor is not None and value.name is not None
        del graph.initializers[value.name]
        value.const_value = None
        value.type = value.type or onnx_ir.TensorType(tensor.dtype)
        value.shape = value.shape or onnx_ir.Shape(tensor.shape.numpy())
        if not value.is_graph_input():
            graph.inputs.append(value)
        self._changed("input")

    def to_initializer(self, value: onnx_ir.Value, tensor: onnx_ir.TensorProtocol) -> None:
        """Convert an input of the main graph to an initializer, or set the contents of one.

        An overridable initializer remains an input, and so does every initializer below IR version 4.
        """
        graph = self.model.graph
        if value.is_initializer():
            value.const_value = tensor
        else:
            if self.model.ir_version >= 4:
                graph.inputs.remove(value)
            value.const_value = tensor
            value.shape = onnx_ir.Shape(tensor.shape.numpy())
            graph.register_initializer(value)
        self._changed("constant")

    def set_default(self, value: onnx_ir.Value, tensor: onnx_ir.TensorProtocol) -> None:
        """Set the default of ``value``, an input of the main graph, to ``tensor``.

        Not representable below IR version 4.
        """
        assert self.model.ir_version >= 4
        value.const_value = tensor
        self.model.graph.register_initializer(value)
        self._changed("constant")

    # Bodies ------------------------------------------------------------------------------

    def inline_body(self, body: onnx_ir.Graph, holder: onnx_ir.Node) -> list[onnx_ir.Value]:
        """Move the nodes of ``body`` before ``holder``, the node with it; returns the body's outputs.

        The caller replaces the outputs of ``holder`` and removes it. ``body`` must have no inputs.
        """
        graph = graph_of(holder)
        nodes, outputs = self._emptied(body, graph)
        graph.insert_before(holder, nodes)
        self._changed("hoist")
        return outputs

    def append_body(self, body: onnx_ir.Graph, into: onnx_ir.Graph) -> list[onnx_ir.Value]:
        """Move the nodes of ``body`` to the end of ``into``, another body; returns the outputs of ``body``.

        The caller removes the node with ``body``, which must have no inputs.
        """
        nodes, outputs = self._emptied(body, into)
        into.extend(nodes)
        self._changed("absorb")
        return outputs

    def _emptied(
        self, body: onnx_ir.Graph, into: onnx_ir.Graph
    ) -> tuple[list[onnx_ir.Node], list[onnx_ir.Value]]:
        """Empty ``body`` and move its initializers to ``into``; returns its nodes and outputs."""
        outputs = list(body.outputs)
        body.outputs.clear()
        for value in list(body.initializers.values()):
            del body.initializers[value.name or ""]
            self._taken.free_values([value])
            assert value.const_value is not None
            constant = self.constant(into, value.const_value, value.name or "constant")
            name_references.take_over(constant, value, name=True)
            if value.name != constant.name:
                name_references.rename(self.model, value.name or "", constant.name or "")
            outputs = [constant if output is value else output for output in outputs]
            replace_uses(value, constant)
        nodes = list(body)
        body.remove(nodes)
        for node in nodes:
            for output in node.outputs:
                if output.name and self._taken.is_shared(output):
                    self.rename(output, output.name)
        return nodes, outputs

    def add_input(
        self,
        name: str,
        dtype: onnx_ir.DataType,
        dims: Sequence[int | str | onnx_ir.SymbolicDim | None] | None,
    ) -> onnx_ir.Value:
        """Add an input to the model. Raises ValueError if its name is taken."""
        if self._taken.take_value(name) != name:
            raise ValueError(f"the model has a value {name!r} already")
        shape = None if dims is None else onnx_ir.Shape(dims)
        value = onnx_ir.Value(name=name, type=onnx_ir.TensorType(dtype), shape=shape)
        self.model.graph.inputs.append(value)
        self._changed("input")
        return value

    def add_output(self, body: onnx_ir.Graph, value: onnx_ir.Value) -> None:
        """Add ``value`` to the outputs of ``body``."""
        body.outputs.append(value)
        self._changed("output")

    def set_output(self, body: onnx_ir.Graph, index: int, value: onnx_ir.Value) -> None:
        """Set output ``index`` of ``body`` to ``value``."""
        body.outputs[index] = value
        self._changed("output")

    def set_outputs(self, body: onnx_ir.Graph, values: Iterable[onnx_ir.Value]) -> None:
        """Set the outputs of ``body`` to ``values``."""
        values = list(values)
        body.outputs.clear()
        body.outputs.extend(values)
        self._changed("output")

    def set_inputs(self, body: onnx_ir.Graph, values: Iterable[onnx_ir.Value]) -> None:
        """Set the inputs of ``body`` to ``values``; removed inputs must be unread."""
        values = list(values)
        self._taken.free_values(value for value in body.inputs if value not in values)
        body.inputs.clear()
        body.inputs.extend(values)
        self._changed("input")

    def hoist(self, node: onnx_ir.Node, holder: onnx_ir.Node) -> None:
        """Move ``node`` before ``holder`` from a body of ``holder``; it must not read values of that body."""
        graph_of(node).remove(node)
        for output in node.outputs:
            if output.name and self._taken.is_shared(output):
                self.rename(output, output.name)
        graph_of(holder).insert_before(holder, [node])
        self._changed("lift")

    def begin_body(self, around: onnx_ir.Graph, inputs: Sequence[onnx_ir.Value], name: str) -> onnx_ir.Graph:
        """Create an empty body for a node that will be inserted into ``around``.

        A body is complete before its node is created, since the outputs of the node depend on the body's
        outputs.
        """
        body = onnx_ir.Graph(inputs, [], nodes=[], name=name)
        self.scopes.begin(body, around)
        return body

    def split_off(
        self,
        body: onnx_ir.Graph,
        nodes: Sequence[onnx_ir.Node],
        inputs: Sequence[onnx_ir.Value],
        outputs: Sequence[onnx_ir.Value],
        name: str,
        values: Mapping[onnx_ir.Value, onnx_ir.Value],
    ) -> onnx_ir.Graph:
        """Move ``nodes`` from ``body`` to a new body, which the caller attaches to a node.

        The remaining nodes must not read their outputs.

        Args:
            body: the body to move the nodes from.
            nodes: in topological order.
            inputs, outputs, name: the interface and name of the new body.
            values: replacements for values of ``body`` that the nodes read.
        """
        replace_within(nodes, values)
        body.remove(nodes)
        graph = onnx_ir.Graph(inputs, outputs, nodes=nodes, opset_imports=dict(body.opset_imports), name=name)
        graph.meta.update(body.meta)
        self._changed("split")
        return graph

    def remove_with_bodies(self, node: onnx_ir.Node) -> None:
        """Remove ``node`` and the nodes of its bodies, which would count as readers of outer values."""
        for body in bodies(node):
            self.clear_body(body)
        self.remove(node)

    def clear_body(self, body: onnx_ir.Graph) -> None:
        """Remove all nodes of ``body`` and of the bodies in it, which would count as readers of outer values.

        The node with ``body`` must be removed next.
        """
        for graph in reversed(list(with_bodies(body))):
            graph.outputs.clear()
            for node in list(reversed(graph)):
                self.remove(node)
            self._taken.free_values(graph.initializers.values())

    # Notes -------------------------------------------------------------------------------

    def strip_notes(
        self,
        item: onnx_ir.Model | onnx_ir.Graph | onnx_ir.Function | onnx_ir.Node | onnx_ir.Value,
        prefixes: tuple[str, ...],
    ) -> int:
        """Remove the doc string of ``item``, and metadata with one of the key ``prefixes``.

        Returns their number.
        """
        keys = [key for key in item.metadata_props if key.startswith(prefixes)]
        for key in keys:
            del item.metadata_props[key]
        removed = len(keys) + bool(item.doc_string)
        if removed:
            item.doc_string = None
            self._changed("note")
        return removed

    def note(
        self,
        item: onnx_ir.Model | onnx_ir.Node | onnx_ir.Value | onnx_ir.Function,
        key: str,
        text: str | None,
    ) -> None:
        """Set an entry of the metadata of ``item``, or remove it if ``text`` is ``None``."""
        if item.metadata_props.get(key) != text:
            if text is None:
                del item.metadata_props[key]
            else:
                item.metadata_props[key] = text
            self._changed("note")

    # Versions ----------------------------------------------------------------------------

    def set_import(self, imports: dict[str, int], domain: str, version: int) -> None:
        """Set the imported version of ``domain``, if it is imported.

        Args:
            imports: ``opset_imports`` of the main graph or a function.
            domain: ``""`` is equivalent to ``ai.onnx``.
            version: the new version.
        """
        key = "ai.onnx" if domain == "" and "ai.onnx" in imports and "" not in imports else domain
        if key in imports and imports[key] != version:
            imports[key] = version
            self._changed("import")

    def import_domain(self, node: onnx_ir.Node, version: int = 1) -> None:
        """Import the domain of ``node`` in its graph, unless a version of it is imported already."""
        imports = self.scopes.imports(graph_of(node))
        if node.domain and node.domain not in imports:
            imports[node.domain] = version
            self._changed("import")

    def remove_import(self, imports: dict[str, int], domain: str) -> None:
        """Remove the import of an unused domain."""
        del imports[domain]
        self._changed("import")

    def raise_ir_version(self, version: int) -> None:
        """Raise the model's IR version. Initializers that were inputs by necessity remain constants."""
        model = self.model
        if model.ir_version < 4 <= version:
            defaults = set(model.graph.initializers.values())
            for value in [value for value in model.graph.inputs if value in defaults]:
                model.graph.inputs.remove(value)
        model.ir_version = model.graph.meta[IR_VERSION] = version
        self._changed("version")

    # Functions ---------------------------------------------------------------------------

    def make_function(
        self,
        domain: str,
        name: str,
        inputs: Sequence[onnx_ir.Value],
        outputs: Sequence[onnx_ir.Value],
        nodes: Sequence[onnx_ir.Node],
        attributes: Sequence[onnx_ir.Attr],
        imports: Mapping[str, int],
    ) -> onnx_ir.Function:
        """Create a function; ``nodes``, which must read ``inputs`` already, move there from their graph."""
        if nodes:
            graph_of(nodes[0]).remove(nodes)
        for node in nodes:
            self.tally[node.domain, node.op_type] -= 1
        graph = onnx_ir.Graph(inputs, outputs, nodes=nodes, opset_imports=dict(imports), name=name)
        function = onnx_ir.Function(domain, name, graph=graph, attributes=attributes)
        self.model.functions[function.identifier()] = function
        self.scopes.adopt_function(function)
        self._changed("function")
        return function

    def redirect(self, call: onnx_ir.Node, function: onnx_ir.Function) -> None:
        """Change the callee of ``call`` to ``function``, which has the same domain."""
        self.tally[call.domain, call.op_type] -= 1
        call.op_type, call.overload = function.name, function.overload
        self.tally[call.domain, call.op_type] += 1
        self._changed("redirect")

    def rename_function(self, function: onnx_ir.Function, calls: Iterable[onnx_ir.Node], name: str) -> None:
        """Rename a function; ``calls`` are all its calls."""
        del self.model.functions[function.identifier()]
        function.name = name
        self.model.functions[function.identifier()] = function
        self._changed("function")
        for call in calls:
            self.redirect(call, function)

    def remove_function(self, function: onnx_ir.Function) -> None:
        """Remove a function without calls."""
        del self.model.functions[function.identifier()]
        self._changed("function")

    def note_origin(self, nodes: Iterable[onnx_ir.Node], sources: Sequence[onnx_ir.Node], by: str) -> None:
        """Record that the rule or pass ``by`` derived ``nodes`` from ``sources``."""
        provenance.derive(nodes, sources, by)


def take_out(graph: onnx_ir.Graph, node: onnx_ir.Node) -> None:
    """Remove ``node`` from ``graph`` in constant time; onnx-ir's method searches all graph outputs."""
    node.graph = None
    graph._nodes.remove(node)


def graph_of(node: onnx_ir.Node) -> onnx_ir.Graph:
    """The graph that contains ``node``."""
    assert node.graph is not None, f"node {node.name!r} is in no graph"
    return node.graph
