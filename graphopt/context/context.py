"""The services of a run for its passes and rules."""

from __future__ import annotations

import math
import warnings
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import field
from typing import TYPE_CHECKING, Self

import numpy as np

from graphopt import ir
from graphopt.analysis.symbolic import Dim
from graphopt.context.observer import Action, Observer, Refusal
from graphopt.context.pass_options import Options
from graphopt.errors import PassFailed
from graphopt.ops import graphopt_operators, traits
from graphopt.util.lazy_dataclass import dataclass
from graphopt.util.resource_budget import Budget

if TYPE_CHECKING:
    from graphopt.analysis.shape_inference.shape_facts import ShapeFacts
    from graphopt.cost import Costs, Decision
    from graphopt.folding.constant_evaluator import Evaluator
    from graphopt.ort.target import Target


@dataclass
class Context:
    """The services of one run over one model.

    Attributes:
        model: the model to optimize.
        edit: the editor, the only means to change the model.
        facts: shapes, dtypes and small integer contents.
        target: the device and runtime of the result.
        evaluator: computes constants with the runtime's own kernels.
        options: limits that apply to every pass.
        budget: the limits on time and memory of folding and shape facts.
        gate: called before each change, which is made only if the call returns true (for bisection and
            ``--stop-after``).
        observers: receive rewrites, refusals and remarks.
        actions: number of changes so far.
        denied: the first change that the gate refused.
        most_actions: number of changes after which a pass counts as not terminating.
        attempts: number of rules tried at a node so far.
        remarks: changes by passes to the model as a whole, such as ``opset 21 → 13``, for the report.
        decisions: each distinct decision by cost that passes and rules requested, with its frequency.
        weighed: the last decision by cost, for each rule or pass and the outputs of its nodes.
        changed: in later rounds of a fixpoint, the nodes that the running pass visits again
            (:mod:`graphopt.passes.changed_neighborhood`); ``None`` for all nodes.
        unproven: nodes at which a pass that is declared as proven exact may have changed a reader's kernel.
        ungrouped: the reason why ``fuse-groups`` put a node into no group, by name of the node.
    """

    model: ir.Model
    edit: ir.Editor
    facts: ShapeFacts
    target: Target
    evaluator: Evaluator
    options: Options = field(default_factory=Options)
    budget: Budget = field(default_factory=Budget)
    gate: Callable[[Action], bool] | None = None
    observers: list[Observer] = field(default_factory=list)
    actions: int = 0
    denied: Action | None = None
    most_actions: int | None = None
    attempts: int = 0
    remarks: list[str] = field(default_factory=list)
    decisions: Counter[Decision] = field(default_factory=Counter)
    weighed: dict[tuple[str, tuple[str, ...]], Decision] = field(default_factory=dict)
    changed: frozenset[ir.Node] | None = None
    unproven: set[str] = field(default_factory=set)
    ungrouped: dict[str, str] = field(default_factory=dict)
    _tied: dict[tuple[object, ...], ir.TensorProtocol] | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def close(self) -> None:
        """End resources that the services have started, such as processes that evaluate constants."""
        self.evaluator.close()
        record = ir.read_record_of(self.model)
        if record is not None:
            record.release()

    # Facts, in short forms for passes and rules ---------------------------------------------

    def shape(self, value: ir.Value | None) -> tuple[Dim, ...] | None:
        """The dims of ``value``: ints, or expressions over symbols; ``None`` if the rank is unknown."""
        return None if value is None else self.facts.shape(value)

    def static_shape(self, value: ir.Value) -> tuple[int, ...] | None:
        """The dims of ``value`` if all of them are known ints."""
        return ir.all_ints(self.facts.shape(value))

    def rank(self, value: ir.Value | None) -> int | None:
        """The number of dims of ``value``."""
        return None if value is None else self.facts.rank(value)

    def dtype(self, value: ir.Value | None) -> ir.DataType | None:
        """The element type of ``value``; ``None`` if unknown, or not a tensor."""
        return None if value is None else self.facts.dtype(value)

    def known_ints(self, value: ir.Value | None) -> tuple[Dim, ...] | None:
        """The contents of a small integer tensor of rank 0 or 1, possibly symbolic."""
        return None if value is None else self.facts.known_ints(value)

    def static_ints(self, value: ir.Value | None) -> tuple[int, ...] | None:
        """The contents of a small integer tensor if all of them are known ints."""
        return None if value is None else ir.all_ints(self.facts.known_ints(value))

    def constant(self, value: ir.Value | None) -> np.ndarray | None:
        """The contents of the constant ``value``, of any size; ``None`` if it is not constant."""
        tensor = ir.constant_of(value)
        if tensor is None:
            return None
        ir.read(value)
        return tensor.numpy()

    def fill(self, value: ir.Value | None) -> np.generic | None:
        """The common value of all elements of ``value``, compared bit by bit; ``None`` if unknown.

        ``value`` may be constant or computed. Its shape may be unknown, or contain a dim of size 0.
        """
        number = None if value is None else self.facts.fill(value)
        if number is not None and ir.constant_of(value) is not None:
            ir.read(value)
        return number

    def is_tied(self, value: ir.Value) -> bool:
        """Whether ``value`` is constant, and shared its bytes with another constant when the pass started.

        Replacing such a constant does not free the bytes, and the replacement would no longer share them.
        """
        tensor = ir.computable(value)
        if tensor is None:
            return False
        if self._tied is None:
            self._tied = ir.tied_storages(self.model)
        return bool(self._tied) and ir.storage_of(tensor) in self._tied

    def renew_ties(self) -> None:
        """Forget constants that no longer share their bytes; called before each pass."""
        if self._tied:
            self._tied = ir.tied_storages(self.model)

    def knowledge(self) -> tuple[object, ...]:
        """A value that differs after facts about existing values have changed, anywhere in the model."""
        return self.facts, self.facts.refinements, None if self._tied is None else tuple(self._tied)

    @property
    def graphs(self) -> tuple[ir.Graph, ...]:
        """All graphs of the model: the main one, its bodies, then each function with its bodies."""
        return self.edit.inventory.graphs

    def nodes_to_visit(self, graph: ir.Graph) -> list[ir.Node]:
        """The nodes of ``graph``, in order; in later rounds of a fixpoint, only those near changes."""
        changed = self.changed
        return list(graph) if changed is None else [node for node in graph if node in changed]

    def version(self, node: ir.Node) -> int:
        """The opset version of the domain of ``node`` in its graph."""
        return self.edit.scopes.version(node)

    def is_deterministic(self, node: ir.Node) -> bool:
        """Whether ``node`` is known to return the same outputs for the same inputs."""
        return traits.is_deterministic(node, self.model.functions)

    def has_to_run(self, node: ir.Node) -> bool:
        """Whether ``node`` is kept even without uses, such as a guard."""
        return graphopt_operators.has_guards(node, self.model.functions)

    @property
    def costs(self) -> Costs:
        """The costs of fused operators on the device of the result."""
        from graphopt.cost import shipped

        return self.options.costs or shipped(self.options.device.kind)

    def weigh(
        self,
        *ops: str,
        by: str,
        at: Sequence[ir.Value],
        case: str = "",
        dtype: ir.DataType | None = None,
        **sizes: Dim | None,
    ) -> Decision:
        """Decide which is fastest here: one of the fused operators ``ops``, or the existing nodes.

        >>> cx.weigh("MultiHeadAttention", "Attention", by=rule, at=[value], length=128).op # doctest: +SKIP
        'Attention'

        Args:
            ops: operators, or passes, in the table of costs.
            by: the rule or pass that would create the operator, for reports.
            at: outputs of the affected nodes, the most informative first.
            case: a further property that affects costs, such as ``causal``.
            dtype: the element type.
            sizes: by the names of the table's axes; symbolic sizes count as unknown.
        """
        name = None if dtype is None else dtype.name.lower()
        decision = self.costs.weigh(*ops, case=case, dtype=name, **sizes)
        self.decisions[decision] += 1
        self.weighed[by, tuple(value.name or "" for value in at)] = decision
        return decision

    # Changes ------------------------------------------------------------------------------

    def begin_rewrite(self, owner: str, node: ir.Node) -> Action | None:
        """Begin a rewrite of ``node`` by rule or pass ``owner``; ``None`` if the rewrite is not permitted.

        Passes call this before each rewrite, so that bisect can find the one at fault.
        """
        action = Action(self.actions + 1, owner, ir.label(node))
        if self.gate is not None and not self.gate(action):
            self.denied = self.denied or action
            return None
        if self.actions == self.most_actions:
            reached = f"{self.actions:,} rewrites, the latest by {owner}"  # not necessarily the rule at fault
            raise PassFailed(f"rewriting does not come to an end: {reached}", owner=owner, endless=True)
        self.actions += 1
        self.edit.actor = owner
        return action

    def permit(self, owner: str, node: ir.Node) -> Action | None:
        """Deprecated: use :meth:`begin_rewrite`."""
        warnings.warn("Context.permit is deprecated: use begin_rewrite", DeprecationWarning, stacklevel=2)
        return self.begin_rewrite(owner, node)

    def wrote(self, action: Action, root: ir.Node, made: list[ir.Node]) -> None:
        """Deprecated: use :meth:`end_rewrite`."""
        warnings.warn("Context.wrote is deprecated: use end_rewrite", DeprecationWarning, stacklevel=2)
        self.end_rewrite(action, root, made)

    def is_blocked(self, owner: str, node: ir.Node) -> bool:
        """Whether the rule ``owner`` is excluded at ``node`` because it is known to fail there."""
        refused = self.options.refused
        return bool(refused) and not refused.isdisjoint([(owner, ""), (owner, ir.label(node))])

    def look_afresh(self, kind: str) -> None:
        """Deprecated: use :meth:`invalidate`."""
        warnings.warn("Context.look_afresh is deprecated: use invalidate", DeprecationWarning, stacklevel=2)
        self.invalidate(kind)

    def invalidate(self, kind: str) -> None:
        """Discard everything inferred about the model, after a change that bypassed the editor.

        Args:
            kind: the kind of change, for statistics.
        """
        self.edit.resync(kind)
        self.facts = self.facts.rebuild(self.edit)
        self._tied = None

    def infer_afresh(self) -> None:
        """Infer all facts again from the current model, without facts about removed nodes."""
        self.facts = self.facts.rebuild(self.edit)
        self.facts.infer_all()

    def end_rewrite(self, action: Action, root: ir.Node, made: list[ir.Node]) -> None:
        """Report to the observers the finished rewrite ``action``, which replaced ``root`` by ``made``."""
        self.commit_reads()
        self.edit.end_rewrite()
        for observer in self.observers:
            observer.rewrote(action, root, made)

    def commit_reads(self, epoch: int | None = None) -> None:
        """Record the constants that were read for the last change.

        Args:
            epoch: the editor's epoch before the change; if the epoch is still the same, the reads are
                discarded.
        """
        record = ir.read_record_of(self.model)
        if record is None:
            return
        if epoch == self.edit.epoch:
            record.begin()
        else:
            record.commit()

    def forget_reads(self) -> None:
        """Discard the record of constants that were read, because no change depends on them."""
        record = ir.read_record_of(self.model)
        if record is not None:
            record.begin()

    def refuse(self, refusal: Refusal) -> None:
        """Report to the observers the reason why a site was not rewritten."""
        for observer in self.observers:
            observer.refused(refusal)

    def say(self, owner: str, message: Callable[[], str]) -> None:
        """Offer a remark to observers; the text is computed only if an observer requests it."""
        for observer in self.observers:
            observer.said(owner, message)


def context_for(
    model: ir.Model,
    options: Options | None = None,
    *,
    gate: Callable[[Action], bool] | None = None,
    observers: Sequence[Observer] = (),
) -> Context:
    """The context for passes on ``model``.

    >>> cx = context_for(model)                               # doctest: +SKIP
    >>> Pipeline.parse("dce", registry()).run(model, cx)      # doctest: +SKIP
    """
    from graphopt.analysis.shape_inference.shape_facts import ShapeFacts
    from graphopt.folding.constant_evaluator import Evaluator
    from graphopt.ort.target import Target

    edit = ir.Editor(model)
    ir.track(model)
    options = options or Options()
    if options.weights:
        before = ir.constant_graph_of(model.graph)
        if before is None or before.main is not model.graph:  # a clone has the constant graph of its original
            ir.ConstantGraph(model.graph, options.weights)
    ranges = {name: (first, last or math.inf) for name, (first, last) in options.dim_ranges.items()}
    budget = Budget(options.time_limit, options.memory_limit)
    known = ShapeFacts.of(edit, ranges, budget)
    evaluator = Evaluator.of(
        model, edit.scopes, constant=ir.computable, budget=budget, filled=known.is_nonempty
    )
    return Context(
        model, edit, known, Target(options.device), evaluator, options, budget, gate, list(observers)
    )
