"""The tree of scopes of a graph: modules by the names of nodes, bodies and functions."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Literal

from graphopt import ir
from graphopt.page.layered_layout import Edge, layered_layout
from graphopt.page.page_data import Layout, Scope

_Kind = Literal["graph", "module", "function", "body"]
#: Maximum depth of modules in one graph; the rest of a deeper name is one component.
_DEPTH = 12


def module_path(node: ir.Node) -> tuple[str, ...]:
    """The names of the modules that contain ``node``, outermost first.

    They are those that PyTorch's exporter recorded, or else the components of the node's name but the last.
    """
    noted = ir.noted_scopes(node)
    if noted:
        paths = [scope for scope in noted if scope]
        return tuple(map(_relative, paths, ["", *paths[:-1]]))[:_DEPTH]
    return tuple(part for part in (node.name or "").split("/")[:-1] if part)[:_DEPTH]


def _relative(path: str, outer: str) -> str:
    """``path`` without the path ``outer`` that contains it."""
    return path[len(outer) + 1 :] if outer and path.startswith(f"{outer}.") else path


class ScopeTree:
    """Scopes, created on first use.

    Attributes:
        scopes: the scopes without layouts; scope 0 is the whole graph.
    """

    def __init__(self) -> None:
        self.scopes = [Scope("", -1, "graph")]
        self._known: dict[tuple[int, str], int] = {}

    def add(self, name: str, parent: int, kind: _Kind) -> int:
        """A new scope."""
        self.scopes.append(Scope(name, parent, kind))
        return len(self.scopes) - 1

    def module(self, parent: int, path: Sequence[str]) -> int:
        """The scope of the modules ``path`` in the scope ``parent``."""
        for name in path:
            if (parent, name) not in self._known:
                self._known[parent, name] = self.add(name, parent, "module")
            parent = self._known[parent, name]
        return parent

    def without_single_nodes(self, scope_of: list[int]) -> ScopeTree:
        """The tree without modules that contain less than two nodes; their nodes move to the scope around.

        Args:
            scope_of: the scope of each node; replaced in place by scopes of the result.
        """
        sizes = [0] * len(self.scopes)
        for scope in scope_of:
            sizes[scope] += 1
        for scope in range(len(self.scopes) - 1, 0, -1):  # a parent precedes its children
            sizes[self.scopes[scope].parent] += sizes[scope]
        kept = ScopeTree()
        number = {0: 0}
        for index, one in enumerate(self.scopes[1:], 1):
            parent = number[one.parent]
            is_kept = sizes[index] > 1 or one.kind != "module"
            number[index] = kept.add(one.name, parent, one.kind) if is_kept else parent
        scope_of[:] = [number[scope] for scope in scope_of]
        return kept

    def laid_out(self, scope_of: Sequence[int], edges: Sequence[Edge]) -> list[Scope]:
        """The scopes with the layouts of their nodes and scopes.

        Args:
            scope_of: the scope of each node.
            edges: pairs of nodes; between scopes, each is an edge of the innermost scope around both.
        """
        children: list[dict[int, int]] = [{} for _ in self.scopes]
        for node in range(len(scope_of)):
            child, scope = node, scope_of[node]
            while scope >= 0 and child not in children[scope]:
                children[scope][child] = len(children[scope])
                child, scope = -scope, self.scopes[scope].parent
        inside: list[list[Edge]] = [[] for _ in self.scopes]
        chains: dict[int, list[int]] = {}
        for first, second in edges:
            one, other = self._chain(scope_of[first], chains), self._chain(scope_of[second], chains)
            common = 0
            while common < min(len(one), len(other)) and one[common] == other[common]:
                common += 1
            begin = first if common == len(one) else -one[common]
            end = second if common == len(other) else -other[common]
            scope = one[common - 1]
            inside[scope].append((children[scope][begin], children[scope][end]))
        return [
            Scope(scope.name, scope.parent, scope.kind, layout_of(list(children[index]), inside[index]))
            for index, scope in enumerate(self.scopes)
        ]

    def _chain(self, scope: int, chains: dict[int, list[int]]) -> list[int]:
        """The scopes around ``scope`` and itself, outermost first."""
        if scope not in chains:
            chains[scope] = list(self._upwards(scope))[::-1]
        return chains[scope]

    def _upwards(self, scope: int) -> Iterator[int]:
        while scope >= 0:
            yield scope
            scope = self.scopes[scope].parent


def layout_of(children: Sequence[int], edges: Sequence[Edge]) -> Layout:
    """The layout of ``children``, with edges between their positions."""
    at = layered_layout(len(children), edges)
    order = sorted(range(len(children)), key=lambda one: (at.layer[one], at.x[one]))
    return Layout(
        [children[one] for one in order], [at.layer[one] for one in order], [at.x[one] for one in order]
    )
