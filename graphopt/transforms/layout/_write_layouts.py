"""Rebuild the nodes of a graph in the chosen layouts, and write the Transposes that remain."""

from __future__ import annotations

from collections.abc import Container, Iterable, Iterator, Sequence
from dataclasses import field
from itertools import pairwise
from typing import Any, TypeAlias

import numpy as np

from graphopt import ir
from graphopt.context import Context
from graphopt.rewrite.match import Match
from graphopt.rewrite.replacement_builder import Builder
from graphopt.rewrite.traced_array import trace
from graphopt.rules.building_blocks.reshape_targets import reshape_target
from graphopt.transforms.layout._choose_layouts import Assignment
from graphopt.transforms.layout._dataflow import NAME, NodeSite, Reading, Site, Tensor, Use
from graphopt.transforms.layout._permutations import Perm, after, identity, significant
from graphopt.util.lazy_dataclass import dataclass

#: Declared sizes, or names, of the axes of a value.
_Sizes: TypeAlias = list[int | str | None]


def write_layouts(chosen: Assignment, cx: Context) -> int:
    """Apply the layouts of ``chosen`` to the model; returns the number of changed sites.

    Sites that exchange tensors in a changed layout form one rewrite.
    """
    changed = 0
    for component in _components(chosen):
        sites = component.sites
        action = cx.begin_rewrite(NAME, sites[0].node)
        if action is None:
            continue
        created = _Rewrite(chosen.of_sites(sites), component.tensors, cx).run()
        changed += len(sites)
        if not all(isinstance(site, NodeSite) for site in sites):
            cx.invalidate("layout")  # values of bodies keep their names, but have other shapes
        cx.end_rewrite(action, sites[0].node, created)
    return changed


@dataclass
class _Component:
    """Connected sites in new layouts, in order, and the tensors that they write or read in these layouts."""

    sites: list[Site] = field(default_factory=list)
    tensors: list[Tensor] = field(default_factory=list)


def _components(chosen: Assignment) -> list[_Component]:
    """The sites in new layouts, grouped by the tensors that they share."""
    parent = {site: site for site in chosen.flow.sites if site in chosen.at and chosen.at[site] != site.own}

    def find(site: Site) -> Site:
        while parent[site] is not site:
            parent[site] = parent[parent[site]]
            site = parent[site]
        return site

    rebuilt: dict[ir.Node | ir.Graph, Site] = {
        site.node: site for site in parent if isinstance(site, NodeSite)
    }
    touched: list[tuple[Tensor, Site]] = []
    for tensor in chosen.flow.tensors.values():
        moved = [site for site in (tensor.writer, *(r.site for r in tensor.readings)) if site in parent]
        if not moved:
            continue
        assert moved[0] is not None
        touched.append((tensor, moved[0]))
        # a rebuilt node may also read tensors whose layout it does not change
        others = [rebuilt[r.use.place] for r in tensor.readings if r.use.place in rebuilt]
        for one, other in pairwise([*moved, *others]):
            assert one is not None and other is not None
            parent[find(other)] = find(one)
    groups: dict[Site, _Component] = {}
    for site in parent:
        groups.setdefault(find(site), _Component()).sites.append(site)
    for tensor, site in touched:
        groups[find(site)].tensors.append(tensor)
    return list(groups.values())


class _Everything(Container[ir.Node]):
    """All nodes."""

    def __contains__(self, item: object) -> bool:
        return True


@dataclass
class _Rewrite:
    """One rewrite of connected sites.

    Attributes:
        chosen: the new layouts of these sites, in order.
        tensors: the tensors that they write or read.
        versions: by tensor, the values with its contents, by layout.
        redirected: the new values of uses, which are set at the end: facts about the old values are needed
            until then.
        replaced: old results, and new ones in the same layout.
        created: the new nodes.
    """

    chosen: Assignment
    tensors: list[Tensor]
    cx: Context
    versions: dict[Tensor, dict[Perm, ir.Value]] = field(default_factory=dict)
    redirected: list[tuple[Use, ir.Value, Perm]] = field(default_factory=list)
    replaced: list[tuple[ir.Value, ir.Value]] = field(default_factory=list)
    created: list[ir.Node] = field(default_factory=list)

    def run(self) -> list[ir.Node]:
        """Rebuild the nodes, redirect the uses, and remove the old nodes; returns the new nodes."""
        flow = self.chosen.flow
        by_place: dict[ir.Node | ir.Graph, dict[int, tuple[Tensor, Reading]]] = {}
        for tensor in self.tensors:
            for reading in tensor.readings:
                by_place.setdefault(reading.use.place, {})[reading.use.index] = tensor, reading
        rebuilt = {site.node: site for site in self.chosen.at if isinstance(site, NodeSite)}
        for node in sorted(rebuilt, key=lambda node: flow.order[node]):
            self._rebuild(rebuilt[node], by_place.pop(node, {}))
        for place, readings in by_place.items():
            for index, (tensor, reading) in readings.items():
                value, use = self._version(tensor, self.chosen.required(reading)), Use(place, index)
                if value is not use.value:
                    perm = () if reading.site is None else self.chosen.placement(reading.site).read
                    self.redirected.append((use, value, perm))
        sources = list(dict.fromkeys(site.node for site in self.chosen.at))
        self.cx.edit.note_origin(self.created, sources, NAME)
        self._redirect()
        self._remove_old(
            [*rebuilt, *(alias.producer() for tensor in self.tensors for alias in tensor.aliases)]
        )
        return self.created

    # Values in a layout --------------------------------------------------------------------

    def _version(self, tensor: Tensor, layout: Perm) -> ir.Value:
        """The contents of ``tensor`` in ``layout``."""
        known = self.versions.get(tensor)
        if known is None:
            known = self.versions[tensor] = self._existing(tensor)
        if layout not in known:
            written = self.chosen.written(tensor)
            known[layout] = self._transpose(tensor, known[written], after(written, layout), layout)
        return known[layout]

    def _existing(self, tensor: Tensor) -> dict[Perm, ir.Value]:
        """The versions of ``tensor`` in the model that remain."""
        written = self.chosen.written(tensor)
        if written != identity(tensor.rank):
            return {written: tensor.root}  # the result of an If or a loop, in its new layout
        found = {written: tensor.root}
        order = self.chosen.flow.order
        for alias, perm in tensor.aliases.items():
            readers = [r.use.place for r in tensor.readings if self.chosen.required(r) == perm]
            first = min((order[place] for place in readers if isinstance(place, ir.Node)), default=len(order))
            node = alias.producer()
            if node is not None and node.graph is tensor.graph and order[node] < first:
                found.setdefault(perm, alias)
        return found

    def _transpose(self, tensor: Tensor, value: ir.Value, perm: Perm, layout: Perm) -> ir.Value:
        """``value`` transposed by ``perm``, ahead of the readers in ``layout``."""
        if not tensor.cost and (constant := self._constant(tensor, layout)) is not None:
            return constant
        edit, graph = self.cx.edit, self._home(tensor, layout)
        node = self._view(tensor, value, layout, graph)
        if node is None:
            node = edit.make_node("Transpose", [value], {"perm": list(perm)}, name=f"{value.name}_Transpose")
        producer = value.producer()
        if producer is not None and producer.graph is graph:
            edit.insert_after(producer, [node])
        elif (first := next(iter(graph), None)) is not None:
            edit.insert_before(first, [node])
        else:
            edit.append(graph, node)
        self.created.append(node)
        return node.outputs[0]

    def _view(self, tensor: Tensor, value: ir.Value, layout: Perm, graph: ir.Graph) -> ir.Node | None:
        """A Reshape of ``value`` to ``layout``, if only axes of size 1 move, and a constant describes it."""
        shape, written = self.cx.shape(tensor.root), self.chosen.written(tensor)
        if shape is None or significant(written, shape) != significant(layout, shape):
            return None
        place = next(iter(self.chosen.at)).node
        before, after_ = ([shape[axis] for axis in perm] for perm in (written, layout))
        target = reshape_target(Match(NAME, place, {}, self.cx), before, after_)
        if target is None:
            return None
        sizes = self.cx.edit.constant(graph, np.array(target, np.int64), f"{value.name}_shape")
        return self.cx.edit.make_node("Reshape", [value, sizes], name=f"{value.name}_Reshape")

    def _constant(self, tensor: Tensor, layout: Perm) -> ir.Value | None:
        """The contents of a constant in ``layout``."""
        place = next(r.use.place for r in tensor.readings if isinstance(r.use.place, ir.Node))
        array = trace(tensor.root, tensor.graph, self.cx)
        return (
            None
            if array is None
            else Builder(self.cx, place).constant(array.transpose(layout), tensor.root.name)
        )

    def _home(self, tensor: Tensor, layout: Perm) -> ir.Graph:
        """The graph for a Transpose of ``tensor``: common to all readers, outside of loops, not of Ifs."""
        graphs = [r.use.graph for r in tensor.readings if self.chosen.required(r) == layout]
        paths = [list(reversed(list(self._outward(graph, tensor.graph)))) for graph in graphs]
        common = 0
        while all(len(path) > common for path in paths) and len({path[common] for path in paths}) == 1:
            common += 1
        home = paths[0][common - 1]
        for graph in self._outward(home, tensor.graph):
            holder = self.cx.edit.scopes.holder(graph)
            if graph is tensor.graph or holder is None or holder.op_type == "If":
                return graph
        return tensor.graph

    def _outward(self, graph: ir.Graph, outermost: ir.Graph) -> Iterator[ir.Graph]:
        """``graph`` and the graphs around it, up to ``outermost``."""
        yield graph
        while graph is not outermost:
            holder = self.cx.edit.scopes.holder(graph)
            if holder is None or holder.graph is None:
                return
            graph = holder.graph
            yield graph

    # Nodes and uses ------------------------------------------------------------------------

    def _rebuild(self, site: NodeSite, readings: dict[int, tuple[Tensor, Reading]]) -> None:
        node, at = site.node, self.chosen.at[site]
        inputs = list(node.inputs)
        for index, (tensor, reading) in readings.items():
            inputs[index] = self._version(tensor, self.chosen.required(reading))
        builder = Builder(self.cx, node)
        built: Any = site.operator.rebuild(builder, site.m, node, inputs, at)
        results = built if isinstance(built, Sequence) else (built,)
        self.created += builder.commit()
        for value, new in zip(node.outputs, results, strict=True):
            if not value.name:
                continue
            if at.result == site.own.result:
                self.replaced.append((value, new))
            else:
                tensor, _ = self.chosen.flow.tensor_of[value]
                self.versions[tensor] = {at.result: new}

    def _redirect(self) -> None:
        edit = self.cx.edit
        exchanged = [site for site in self.chosen.at if not isinstance(site, NodeSite)]
        # declared sizes before edits, which transfer declarations of outputs to other values
        sizes = {value: _declared_sizes(value) for site in exchanged for value in site.results}
        sizes |= {
            use.value: _declared_sizes(use.value) for use, _, _ in self.redirected if use.value is not None
        }
        for old, new in self.replaced:
            edit.replace(old, new)
        new_of = dict(self.replaced)
        for use, new, perm in self.redirected:
            value, old_value = new_of.get(new, new), use.value
            assert old_value is not None
            if isinstance(use.place, ir.Node):
                edit.set_input(use.place, use.index, value)
            elif edit.scopes.holder(use.place) is None:
                edit.replace(old_value, value, keep=_Everything())
            else:
                output = self._as_output(use.place, value)
                edit.set_output(use.place, use.index, output)
                self._declare(output, old_value.dtype, sizes[old_value], perm)
        for site in exchanged:
            for value in site.results:
                graph = value.graph
                is_body = graph is None or edit.scopes.holder(graph) is not None
                if is_body or not value.is_graph_output():  # an output of the model has its declaration
                    self._declare(value, value.dtype, sizes[value], self.chosen.at[site].result)

    def _as_output(self, body: ir.Graph, value: ir.Value) -> ir.Value:
        """``value``, or a copy if it is already an output of ``body``, or a value of a graph around it."""
        producer = value.producer()
        is_own = producer is not None and producer.graph is body
        is_own |= any(value is given for given in body.inputs)
        if is_own and not any(value is output for output in body.outputs):
            return value
        copy = self.cx.edit.make_node("Identity", [value], name=f"{value.name}_copy")
        self.cx.edit.append(body, copy)
        self.cx.edit.note_origin([copy], [site.node for site in self.chosen.at], NAME)
        self.created.append(copy)
        return copy.outputs[0]

    def _declare(self, value: ir.Value, dtype: ir.DataType | None, sizes: _Sizes | None, perm: Perm) -> None:
        """Declare ``value`` with ``sizes``, permuted, unless they are unknown."""
        if sizes is not None and dtype is not None and len(sizes) == len(perm):
            self.cx.edit.declare(value, dtype, [sizes[axis] for axis in perm])

    def _remove_old(self, nodes: Iterable[ir.Node | None]) -> None:
        order = self.chosen.flow.order
        old = dict.fromkeys(node for node in nodes if node is not None and node.graph is not None)
        for node in sorted(old, key=lambda node: order[node], reverse=True):
            if not any(map(ir.is_read, node.outputs)):
                self.cx.edit.remove(node)


def _declared_sizes(value: ir.Value) -> _Sizes | None:
    """The declared sizes and names of dims, if ``value`` has a declaration."""
    if value.shape is None:
        return None
    return [dim if isinstance(dim, int) else dim.value for dim in value.shape]
