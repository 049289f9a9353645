"""reduce: find a smaller model on which a check still fails.

The search starts with the nodes around the fault, and extends the neighbourhood until the check fails. Then
delta debugging removes nodes, outputs and sizes. The outputs of removed nodes become inputs, and their
operands become outputs. The result depends neither on time nor on chance.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence

import numpy as np

from graphopt import ir
from graphopt.context import Context, context_for
from graphopt.debug.checks import CheckOptions, make_check
from graphopt.debug.command_checks import CommandNotRun
from graphopt.debug.delta_debugging import minimize
from graphopt.debug.reproducer import isolated, without_files
from graphopt.debug.trial_run import Trial, find_node
from graphopt.errors import GraphoptError, SystemExhausted, VerificationFailed
from graphopt.inputs.feeds import Feeds
from graphopt.model_arguments import copy
from graphopt.process.child import Child
from graphopt.rewrite.rewrite_filter import RewriteLimit
from graphopt.transforms.scalar.check_aliasing import CheckAliasing
from graphopt.util.lazy_dataclass import dataclass
from graphopt.util.text_tables import counted

#: Sizes to which a dim is reduced, the smallest first.
_SIZES = (1, 2, 3, 4)

Fails = Callable[[ir.Model], bool]


@dataclass
class Reduction:
    """The result of a reduction.

    Attributes:
        nodes: number of nodes of the main graph before and after.
        tries: number of models tried.
    """

    model: ir.Model
    nodes: tuple[int, int]
    tries: int


def reduce(
    model: ir.Model,
    fails: Fails,
    *,
    around: str | None = None,
    progress: Callable[[str], None] = lambda text: None,
) -> Reduction:
    """Reduce ``model`` while ``fails`` is true for it.

    Args:
        fails: whether a model still shows the fault.
        around: label of a node near the fault, if known.

    Raises:
        VerificationFailed: ``fails`` is false for ``model``.
    """
    if not fails(model):
        raise VerificationFailed("the check passes, so there is nothing to reduce")
    return _Reducer(model, fails, progress).run(around)


class _Reducer:
    def __init__(self, model: ir.Model, fails: Fails, progress: Callable[[str], None]) -> None:
        self._model = model
        self._fails = fails
        self._report = progress
        self._tries = 1

    def run(self, around: str | None) -> Reduction:
        before = len(self._model.graph)
        if around is not None:
            self._circle(around)
        size = len(self._model.graph) + 1
        while len(self._model.graph) < size:
            size = len(self._model.graph)
            self._drop_nodes()
            self._drop_outputs()
        self._drop_functions()
        self._shrink_sizes()
        return Reduction(self._model, (before, len(self._model.graph)), self._tries)

    def _keep(self, change: str, candidate: ir.Model | None) -> bool:
        """Continue with ``candidate`` if it still fails."""
        if candidate is None:
            return False
        self._tries += 1
        if not self._fails(candidate):
            return False
        self._model = candidate
        self._report(f"try {self._tries}: {counted(len(candidate.graph), 'node')} ({change})")
        return True

    def _circle(self, label: str) -> None:
        node = find_node(self._model, label)
        if node is None or node.graph is not self._model.graph:
            return
        cutter = _Cutter(self._model)
        circle, size = dict.fromkeys([node]), 0
        while len(circle) < len(self._model.graph) and len(circle) > size:
            if self._keep("around the fault", cutter.cut(circle)):
                return
            size = len(circle)
            for _ in range(max(1, size // 8)):
                circle = circle | _neighbours(circle, self._model.graph)

    def _drop_nodes(self) -> None:
        cutter = _Cutter(self._model)

        def failing(nodes: Sequence[ir.Node]) -> bool:
            return self._keep("fewer nodes", cutter.cut(frozenset(nodes)))

        minimize(list(self._model.graph), failing)

    def _drop_outputs(self) -> None:
        cutter = _Cutter(self._model)
        nodes = frozenset(self._model.graph)

        def failing(outputs: Sequence[ir.Value]) -> bool:
            return bool(outputs) and self._keep("fewer outputs", cutter.cut(nodes, outputs))

        minimize(list(self._model.graph.outputs), failing)

    def _drop_functions(self) -> None:
        called = {node.op_identifier() for node in ir.walk_nodes(self._model.graph)}
        if not called & self._model.functions.keys() and self._model.functions:
            candidate = copy(self._model)
            edit = ir.Editor(candidate)
            for function in list(candidate.functions.values()):
                edit.remove_function(function)
            self._keep("no functions", candidate)

    def _shrink_sizes(self) -> None:
        for size in sorted(_sizes(self._model), reverse=True):
            any(
                self._keep(f"size {size} as {new}", _resized(self._model, size, new))
                for new in _SIZES
                if new < size
            )


class _Cutter:
    """Builds models from subsets of the nodes of ``model``."""

    def __init__(self, model: ir.Model) -> None:
        self._model = model
        self._cx: Context = context_for(copy(model))
        originals = [value for node in model.graph for value in node.outputs]
        copies = [value for node in self._cx.model.graph for value in node.outputs]
        self._twin = dict(zip(originals, copies, strict=True))
        self._cx.facts.infer_all()
        self._cx.close()
        self._dims: dict[str, str] = {}

    def cut(self, nodes: Collection[ir.Node], outputs: Iterable[ir.Value] | None = None) -> ir.Model | None:
        """The model of ``nodes``; ``None`` if it would compute nothing."""
        chosen = [node for node in self._model.graph if node in nodes]
        inside = {inner for node in chosen for body in ir.bodies(node) for inner in ir.walk_nodes(body)}
        inside |= set(chosen)
        if outputs is None:
            results = [
                value
                for node in chosen
                for value in node.outputs
                if value.name
                and (value.is_graph_output() or any(user not in inside for user, _ in value.uses()))
            ]
        else:
            results = list(outputs)
            chosen = _dependencies(chosen, results)
        if not results or not chosen:
            return None
        graph = ir.extract(chosen, results, declare=self._declare)
        graph.name = self._model.graph.name
        return ir.model_of(graph, self._model)

    def _declare(self, value: ir.Value) -> tuple[ir.TypeProtocol | None, ir.Shape | None]:
        """The inferred type and shape, or the declared ones."""
        twin = self._twin.get(value)
        if twin is None:
            return value.type, value.shape
        dtype, dims = self._cx.dtype(twin), self._cx.shape(twin)
        kind = value.type if dtype is None else ir.TensorType(dtype)
        if dims is None:
            return kind, value.shape
        return kind, ir.Shape([dim if isinstance(dim, int) else self._symbol(str(dim)) for dim in dims])

    def _symbol(self, text: str) -> str:
        """A symbol for a dim: its own name, or a new one for an expression."""
        if text.isidentifier():
            return text
        return self._dims.setdefault(text, f"dim_{len(self._dims)}")


def _neighbours(circle: Collection[ir.Node], graph: ir.Graph) -> dict[ir.Node, None]:
    """The nodes of ``graph`` whose outputs ``circle`` reads, or that read its outputs."""
    found: dict[ir.Node, None] = {}
    for node in circle:
        producers = [value.producer() for value in ir.reads(node)]
        readers = [user for output in node.outputs for user, _ in output.uses()]
        found |= {item: None for item in (*producers, *readers) if item is not None and item.graph is graph}
    return found


def _dependencies(nodes: Sequence[ir.Node], outputs: Sequence[ir.Value]) -> list[ir.Node]:
    """The subset of ``nodes`` that ``outputs`` depend on."""
    wanted = set(outputs)
    kept = []
    for node in reversed(nodes):
        if any(output in wanted for output in node.outputs):
            kept.append(node)
            wanted.update(ir.reads(node))
    return kept[::-1]


def _sizes(model: ir.Model) -> set[int]:
    """Sizes of dims of inputs and initializers."""
    found: set[int] = set()
    for value in (*model.graph.inputs, *model.graph.initializers.values()):
        if value.shape is not None:
            found.update(dim for dim in value.shape if isinstance(dim, int) and dim > 1)
    return found


def _resized(model: ir.Model, old: int, new: int) -> ir.Model:
    """A copy in which every dim of size ``old`` has size ``new``; inner declarations are removed."""
    other = ir.clone(model)
    graph = other.graph
    for value in (*graph.inputs, *(value for node in graph for value in node.outputs)):
        if value.shape is not None and old in value.shape:
            inside = not value.is_graph_input() and not value.is_graph_output()
            dims = [new if dim == old else dim for dim in value.shape]
            value.shape = None if inside else ir.Shape(dims)
    for value in graph.initializers.values():
        tensor = value.const_value
        if tensor is None or tensor.dtype == ir.DataType.STRING:
            continue
        array = tensor.numpy()
        array = array[tuple(slice(new if size == old else size) for size in array.shape)]
        if array.dtype == np.int64 and array.ndim <= 1:
            array = np.where(array == old, new, array)
        value.const_value = ir.tensor(np.ascontiguousarray(array).reshape(array.shape), dtype=tensor.dtype)
        value.shape = ir.Shape(array.shape)
    return other


class StillFails:
    """Whether a model fails ``check`` after the pipeline, in the same way as ``trial``'s own model.

    With an empty pipeline, the check applies to the model itself.

    Attributes:
        feeds: inputs that showed the latest failure, if any.
    """

    def __init__(self, trial: Trial, check: CheckOptions, limits: RewriteLimit, child: Child) -> None:
        self._trial, self._limits, self._child = trial, limits, child
        self._check = without_files(check)
        self._fails_early = isolated(trial, self._check, child)(limits).error is not None
        self._empty = False
        self.feeds: Feeds | None = None
        if not self._fails(trial.model):
            self._empty = True  # the fault may need dims of size 0, which are more expensive to try

    def __call__(self, model: ir.Model) -> bool:
        """Whether ``model`` still fails; false if memory does not suffice to decide."""
        try:
            return self._fails(model)
        except SystemExhausted:
            return False

    def _fails(self, model: ir.Model) -> bool:
        """Whether ``model`` fails; raises SystemExhausted if memory does not suffice to decide."""
        trial, check = self._trial, self._check
        try:
            if ir.find_fault(model) is not None:
                return False
            if trial.options.share_buffers:  # sharing must be safe before any pass
                with context_for(model, trial.options) as cx:
                    CheckAliasing().run(model, cx)
            outcome = isolated(trial.on(model), check, self._child)(self._limits)
            if outcome.error is not None or self._fails_early:
                return outcome.error is not None and self._fails_early
            assert outcome.model is not None
            with make_check(check, model, empty=self._empty) as judge:
                if trial.pipeline.steps and check.is_command and judge(model) is not None:
                    return False
                if judge(outcome.model) is None:
                    return False
                self.feeds = judge.feeds()
                return True
        except (CommandNotRun, SystemExhausted):
            raise
        except GraphoptError:
            return False  # the model can't be checked
