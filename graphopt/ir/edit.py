"""The Editor: the one door through which a model is changed.

It keeps names unique and the interface whole, counts what was done, moves provenance along,
and tells listeners, so that analyses can stay up to date.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from typing import Any, Protocol

import numpy as np

from graphopt.ir import provenance
from graphopt.ir.attributes import make_attributes
from graphopt.ir.constants import IR_VERSION
from graphopt.ir.onnxir import onnx_ir
from graphopt.ir.schemas import operator_schema
from graphopt.ir.scopes import Scopes, bodies, normal_imports, with_bodies
from graphopt.ir.taken import TakenNames
from graphopt.ir.uses import is_read, read_instead, read_nothing, readers, replace_uses


class ConstantRefused(Exception):
    """A graph can't hold a constant of this type; the text says why. See :meth:`Editor.takes_constant`."""


class Listener(Protocol):
    """What an observer of edits may react to."""

    def replaced(self, old: onnx_ir.Value, new: onnx_ir.Value) -> None:
        """Every reader of ``old`` now reads ``new``, which is equal to it by contract."""


class Editor:
    """Changes ``model`` and nothing else does.

    Attributes:
        epoch: grows with every change; a cache made at another epoch is stale.
        counts: how many changes of each kind were made.
        tally: nodes that came less nodes that went, by domain and operator, since it was last cleared.
        declared_truly: whether the declared shape of an output is known to be right; real models
            carry wrong ones, which onnxruntime believes. All are trusted unless facts say otherwise.
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
        graph = _graph_of(place)
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
        graph = _graph_of(place)
        graph.remove(nodes)
        graph.insert_after(place, nodes)
        self._changed("move")

    def interpose(self, value: onnx_ir.Value, node: onnx_ir.Node) -> None:
        """Put ``node``, which reads ``value``, right behind it; all that read ``value`` now read its output.

        Graphs go on returning ``value`` itself. Listeners are not told that one is the other: what is
        known of the output need not be so of ``value``.
        """
        producer, graph = value.producer(), value.graph
        if producer is not None:
            _graph_of(producer).insert_after(producer, [node])
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
        graph = _graph_of(node)
        if any(map(is_read, node.outputs)):
            raise ValueError(f"node {node.name!r} can't be removed: something reads its outputs")
        read_nothing(node)
        graph.remove(node)
        self.tally[node.domain, node.op_type] -= 1
        self._taken.free_node(node)
        self._changed("remove")

    def remove_whole(self, node: onnx_ir.Node) -> None:
        """Remove ``node`` with all that its bodies hold, which would keep outer values alive."""
        for body in bodies(node):
            self.clear_body(body)
        self.remove(node)

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

    # Values ------------------------------------------------------------------------------

    def can_stand_for(self, old: onnx_ir.Value, new: onnx_ir.Value) -> bool:
        """Whether ``new`` can replace ``old`` without an Identity that keeps an interface name."""
        return not old.is_graph_output() or self._can_be_output(old, new)

    def _can_be_output(self, old: onnx_ir.Value, new: onnx_ir.Value) -> bool:
        producer, own = new.producer(), old.producer()
        return (
            producer is not None
            and own is not None
            and not new.is_graph_output()
            and (producer.graph is own.graph or producer.graph is None)
            and (self.declared_truly(old) or all(reader is own for reader in readers(new)))
        )

    def replace(
        self, old: onnx_ir.Value, new: onnx_ir.Value, *, keep: Container[onnx_ir.Node] = frozenset()
    ) -> None:
        """Let every reader of ``old``, in bodies too, read ``new``, but for the nodes in ``keep``.

        Where ``old`` is an output of its graph, the output keeps its name and declared type:
        ``new`` takes them over, or an Identity bears them when ``new`` can't (it is an input,
        an initializer, an output already, or of an outer graph; or others read it, who must not
        come to rely on a declaration that may be wrong).
        """
        if old is new:
            return
        keeps_name = self.can_stand_for(old, new)
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
        for index, output in enumerate(graph.outputs):
            if output is old:
                graph.outputs[index] = new

    def take_over(self, new: onnx_ir.Value, old: onnx_ir.Value) -> None:
        """Give ``new`` the name and declarations of ``old``, which gets a fresh name."""
        name = old.name
        assert name is not None
        self._taken.free_values([new])
        old.name = self.fresh_name(f"{name}_replaced")
        new.name = name
        new.type, new.shape, new.doc_string = old.type, old.shape, old.doc_string
        if old.metadata_props:
            new.metadata_props.update(old.metadata_props)

    def rename(self, value: onnx_ir.Value, hint: str) -> None:
        """Give ``value`` a free name like ``hint``."""
        self._taken.free_values([value])
        value.name = self.fresh_name(hint)
        self._changed("rename")

    def declare(self, value: onnx_ir.Value, dtype: onnx_ir.DataType, dims: Sequence[int | None]) -> None:
        """Declare that ``value`` is a tensor of ``dtype`` with these dims, ``None`` where unknown."""
        value.type, value.shape = onnx_ir.TensorType(dtype), onnx_ir.Shape(dims)
        self._changed("declare")

    def forget(self, value: onnx_ir.Value, is_stale: Callable[[str], bool]) -> None:
        """Drop the metadata of ``value`` whose keys are stale."""
        stale = [key for key in value.metadata_props if is_stale(key)]
        for key in stale:
            del value.metadata_props[key]
        if stale:
            self._changed("forget")

    # Constants ---------------------------------------------------------------------------

    def constant(
        self, graph: onnx_ir.Graph, data: np.ndarray | np.generic | onnx_ir.TensorProtocol, name: str
    ) -> onnx_ir.Value:
        """A constant of ``graph`` with the given contents.

        It is an initializer; in functions, which have none, and below IR version 4, where
        initializers are inputs, a Constant node at the head of the graph.

        Raises:
            ConstantRefused: the function's opset has no Constant of this type.
        """
        tensor = onnx_ir.Tensor(np.asarray(data)) if isinstance(data, (np.ndarray, np.generic)) else data
        if self.model.ir_version < 4 or self.scopes.function(graph) is not None:
            return self.constant_node(graph, tensor, name)
        value = onnx_ir.Value(
            name=self.fresh_name(name),
            type=onnx_ir.TensorType(tensor.dtype),
            shape=onnx_ir.Shape(tensor.shape.numpy()),
            const_value=tensor,
        )
        graph.register_initializer(value)
        self._changed("constant")
        return value

    def constant_node(
        self, graph: onnx_ir.Graph, data: np.ndarray | np.generic | onnx_ir.TensorProtocol, name: str
    ) -> onnx_ir.Value:
        """The output of a new Constant node at the head of ``graph``; raises as :meth:`constant` does."""
        tensor = onnx_ir.Tensor(np.asarray(data)) if isinstance(data, (np.ndarray, np.generic)) else data
        if not self.takes_constant(graph, tensor.dtype):
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
        self._changed("constant")
        return value

    def takes_constant(
        self, graph: onnx_ir.Graph, dtype: onnx_ir.DataType, version: int | None = None
    ) -> bool:
        """Whether ``graph`` may hold a new constant of ``dtype``.

        Constants of functions are nodes, and before opset 9 Constant gave floating-point numbers only.
        Elsewhere runtimes make initializers of such nodes, and ask nothing of their types.

        Args:
            version: an opset that the graph is to have, instead of its own.
        """
        if self.scopes.function(graph) is None:
            return True
        version = version or normal_imports(self.scopes.imports(graph)).get("", 0)
        schema = operator_schema("", "Constant", version)
        return schema is None or f"tensor({dtype.name.lower()})" in schema.outputs[0].types

    def takes_constants_of(self, graph: onnx_ir.Graph, body: onnx_ir.Graph) -> bool:
        """Whether :meth:`hoist` and :meth:`absorb` may move the initializers of ``body`` into ``graph``."""
        return all(
            value.dtype is None or self.takes_constant(graph, value.dtype)
            for value in body.initializers.values()
        )

    def remove_initializer(self, value: onnx_ir.Value) -> None:
        """Drop an initializer that nothing reads; below IR version 4, its input too."""
        graph = value.graph
        assert graph is not None and value.name is not None
        del graph.initializers[value.name]
        if value.is_graph_input():
            graph.inputs.remove(value)
        self._taken.free_values([value])
        self._changed("constant")

    # Bodies ------------------------------------------------------------------------------

    def hoist(self, body: onnx_ir.Graph, holder: onnx_ir.Node) -> list[onnx_ir.Value]:
        """Move all of ``body`` in front of ``holder``, whose body it is; returns its outputs.

        The caller replaces the holder's outputs and removes it. ``body`` may have no inputs.
        """
        graph = _graph_of(holder)
        nodes, outputs = self._emptied(body, graph)
        graph.insert_before(holder, nodes)
        self._changed("hoist")
        return outputs

    def absorb(self, body: onnx_ir.Graph, into: onnx_ir.Graph) -> list[onnx_ir.Value]:
        """Move all of ``body`` to the end of ``into``, another body; returns its outputs.

        The caller removes the node that held ``body``, which may have no inputs.
        """
        nodes, outputs = self._emptied(body, into)
        into.extend(nodes)
        self._changed("absorb")
        return outputs

    def _emptied(
        self, body: onnx_ir.Graph, into: onnx_ir.Graph
    ) -> tuple[list[onnx_ir.Node], list[onnx_ir.Value]]:
        """Empty ``body`` for ``into``, which gets its initializers; returns its nodes and outputs."""
        outputs = list(body.outputs)
        body.outputs.clear()
        for value in list(body.initializers.values()):
            del body.initializers[value.name or ""]
            self._taken.free_values([value])
            assert value.const_value is not None
            constant = self.constant(into, value.const_value, value.name or "constant")
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
        """Let the model take a further input, whose name must be free."""
        if self._taken.take_value(name) != name:
            raise ValueError(f"the model has a value {name!r} already")
        shape = None if dims is None else onnx_ir.Shape(dims)
        value = onnx_ir.Value(name=name, type=onnx_ir.TensorType(dtype), shape=shape)
        self.model.graph.inputs.append(value)
        self._changed("input")
        return value

    def add_output(self, body: onnx_ir.Graph, value: onnx_ir.Value) -> None:
        """Let ``body``, which a node holds, also return ``value``."""
        body.outputs.append(value)
        self._changed("output")

    def set_output(self, body: onnx_ir.Graph, index: int, value: onnx_ir.Value) -> None:
        """Let ``body``, which a node holds, return ``value`` at ``index``."""
        body.outputs[index] = value
        self._changed("output")

    def set_outputs(self, body: onnx_ir.Graph, values: Iterable[onnx_ir.Value]) -> None:
        """Let ``body``, which a node holds, return ``values``."""
        values = list(values)
        body.outputs.clear()
        body.outputs.extend(values)
        self._changed("output")

    def set_inputs(self, body: onnx_ir.Graph, values: Iterable[onnx_ir.Value]) -> None:
        """Let ``body``, which a node holds, take only those of its inputs; nothing may read the others."""
        values = list(values)
        self._taken.free_values(value for value in body.inputs if value not in values)
        body.inputs.clear()
        body.inputs.extend(values)
        self._changed("input")

    def lift(self, node: onnx_ir.Node, holder: onnx_ir.Node) -> None:
        """Move ``node`` out of a body of ``holder``, of which it reads nothing, in front of ``holder``."""
        _graph_of(node).remove(node)
        for output in node.outputs:
            if output.name and self._taken.is_shared(output):
                self.rename(output, output.name)
        _graph_of(holder).insert_before(holder, [node])
        self._changed("lift")

    def clear_body(self, body: onnx_ir.Graph) -> None:
        """Remove all that ``body`` and the bodies in it hold, so that they keep no outer value alive.

        The node that holds ``body`` must be removed next.
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
        """Remove the doc string of ``item``, and metadata whose key begins with one of ``prefixes``.

        Returns how many were removed.
        """
        keys = [key for key in item.metadata_props if key.startswith(prefixes)]
        for key in keys:
            del item.metadata_props[key]
        removed = len(keys) + bool(item.doc_string)
        if removed:
            item.doc_string = None
            self._changed("note")
        return removed

    # Versions ----------------------------------------------------------------------------

    def set_import(self, imports: dict[str, int], domain: str, version: int) -> None:
        """Let the ``opset_imports`` of the main graph or a function say ``version`` for ``domain``.

        Args:
            domain: ``""`` also stands for a domain that is spelt ``ai.onnx``.
        """
        spelt = "ai.onnx" if domain == "" and "ai.onnx" in imports and "" not in imports else domain
        if spelt in imports and imports[spelt] != version:
            imports[spelt] = version
            self._changed("import")

    def import_domain(self, node: onnx_ir.Node, version: int = 1) -> None:
        """Import the domain of ``node``, which stands in a graph, where no version of it is imported yet."""
        imports = self.scopes.imports(_graph_of(node))
        if node.domain and node.domain not in imports:
            imports[node.domain] = version
            self._changed("import")

    def remove_import(self, imports: dict[str, int], domain: str) -> None:
        """Drop the import of a domain that nothing uses."""
        del imports[domain]
        self._changed("import")

    def raise_ir_version(self, version: int) -> None:
        """Raise the model's IR version. Initializers that had to be listed as inputs stay constants."""
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
        """A new function; ``nodes``, which must read ``inputs`` already, leave their graph for it."""
        if nodes:
            _graph_of(nodes[0]).remove(nodes)
        graph = onnx_ir.Graph(inputs, outputs, nodes=nodes, opset_imports=dict(imports), name=name)
        function = onnx_ir.Function(domain, name, graph=graph, attributes=attributes)
        self.model.functions[function.identifier()] = function
        self.scopes = Scopes(self.model)
        self._changed("function")
        return function

    def redirect(self, call: onnx_ir.Node, function: onnx_ir.Function) -> None:
        """Let ``call`` call ``function``, of the same domain, instead of another one."""
        self.tally[call.domain, call.op_type] -= 1
        call.op_type, call.overload = function.name, function.overload
        self.tally[call.domain, call.op_type] += 1
        self._changed("redirect")

    def remove_function(self, function: onnx_ir.Function) -> None:
        """Drop a function that nothing calls."""
        del self.model.functions[function.identifier()]
        self._changed("function")

    def note_origin(self, nodes: Iterable[onnx_ir.Node], sources: Sequence[onnx_ir.Node], by: str) -> None:
        """Record that ``nodes`` were made out of ``sources`` by the rule or pass ``by``."""
        provenance.derive(nodes, sources, by)


def _graph_of(node: onnx_ir.Node) -> onnx_ir.Graph:
    assert node.graph is not None, f"node {node.name!r} stands in no graph"
    return node.graph
