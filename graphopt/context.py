"""What a pass is handed besides the model.

Nothing in graphopt is ambient: options, analyses, the runtime and the observers all come in
the :class:`Context`, whose services are put in from outside.
"""

from __future__ import annotations

import math
import warnings
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Self, TypeVar

import numpy as np

from graphopt import ir
from graphopt.analysis.symbolic import Dim
from graphopt.errors import PassFailed
from graphopt.numerics import Numerics
from graphopt.ops import dialects, traits
from graphopt.ort.devices import CPU, Device
from graphopt.util.budget import Budget

if TYPE_CHECKING:
    from graphopt.analysis.shape_inference.shape_facts import ShapeFacts
    from graphopt.cost import Costs, Decision
    from graphopt.folding.evaluator import Evaluator
    from graphopt.ort.target import Target
    from graphopt.rewrite.rule import Rule

T = TypeVar("T")


@dataclass(frozen=True)
class Options:
    """What passes may do, whatever pipeline they are part of.

    Attributes:
        numerics: rewrites beyond this class are refused.
        fold_limit: bytes that a folded constant may take without being justified by what it
            replaces.
        time_limit: seconds that folding and shape facts may take together; ``None`` for any time.
        memory_limit: bytes that folding may take; ``None`` for any size.
        dim_ranges: first and last size of dynamic dims, which the user vouches for; ``None`` for no last.
        skip: names of passes and rules that do not run.
        only: if given, the only rules that run.
        refused: rules, each with the node that it must not even try, or an empty name for all.
        withheld: rewrites that were tried and are now left out: rule, node or an empty name for all, and why,
            for those who ask why something is not fused.
        share_buffers: inputs and the outputs that the caller writes over them, by name.
        portable: only operators of the ONNX standard are written.
        strict_fusion: scopes whose nodes must become one fused operator, each with the names of its nodes
            in the original model as far as they do not begin with the scope.
        device: where the result is to run.
        costs: what fused operators take there; ``None`` for the figures that come with graphopt.
        kernels: what stays unfused becomes native kernels where that pays.
        rules: rewrite rules of the caller's, which run along with graphopt's.
        own: names of passes and rules of the caller's, whose exceptions are raised as they are.
    """

    numerics: Numerics = Numerics.REASSOCIATES
    fold_limit: int = 64 * 1024
    time_limit: float | None = None
    memory_limit: int | None = None
    dim_ranges: Mapping[str, tuple[int, int | None]] = field(default_factory=dict)
    skip: frozenset[str] = frozenset()
    only: frozenset[str] | None = None
    refused: frozenset[tuple[str, str]] = frozenset()
    withheld: tuple[tuple[str, str, str], ...] = ()
    share_buffers: tuple[tuple[str, str], ...] = ()
    portable: bool = False
    strict_fusion: Mapping[str, frozenset[str]] = field(default_factory=dict)
    device: Device = CPU
    costs: Costs | None = None
    kernels: bool = False
    rules: tuple[Rule, ...] = ()
    own: frozenset[str] = frozenset()


@dataclass(frozen=True)
class Action:
    """One change that a pass is about to make.

    Attributes:
        index: its number in the whole run, from 1.
        owner: the rule or pass that wants it.
        node: name of the node that is rewritten.
    """

    index: int
    owner: str
    node: str


@dataclass(frozen=True)
class Refusal:
    """Why a rule left a place alone that its pattern matches.

    Attributes:
        value: the name of the value that stands in the way.
        hint: what the user can do about it.
        shared: whether that is because others read the value.
    """

    rule: str
    node: str
    reason: str
    value: str | None = None
    hint: str | None = None
    shared: bool = False


class Observer:
    """Watches a run without taking part in it; a subclass overrides what it cares for."""

    def rewrote(self, action: Action, root: ir.Node, made: list[ir.Node]) -> None:
        """``action`` replaced ``root`` by the nodes ``made``."""

    def refused(self, refusal: Refusal) -> None:
        """A rule left a place alone."""

    def said(self, owner: str, message: Callable[[], str]) -> None:
        """A pass or rule has a remark; the text is made only if it is called for."""


@dataclass
class Context:
    """The services of one run over one model.

    Attributes:
        model: what is being optimized.
        edit: the only way to change it.
        facts: shapes, dtypes and small integer contents.
        target: the device and runtime that the result is for.
        evaluator: computes constants with the runtime's own kernels.
        options: limits that hold for every pass.
        budget: the time and memory that folding and shape facts may take.
        gate: asked before each change; a refused change is not made (bisecting, ``--stop-after``).
        observers: told of rewrites, refusals and remarks.
        actions: changes made so far.
        denied: the first change that the gate refused.
        most_actions: changes after which a pass is said not to end.
        attempts: rules tried at a node so far.
        remarks: what passes did to the model as a whole, such as ``opset 21 → 13``, for the report.
        decisions: each decision by cost that passes and rules asked for, once, and how often.
        weighed: the last decision by cost, by rule or pass and names of the outputs that it concerns.
        ungrouped: by name of a node, why ``fuse-groups`` put it into no group.
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
    ungrouped: dict[str, str] = field(default_factory=dict)
    _tied: dict[tuple[object, ...], ir.TensorProtocol] | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def close(self) -> None:
        """End what the services have started, such as processes that evaluate constants."""
        self.evaluator.close()
        contents = ir.contents_of(self.model)
        if contents is not None:
            contents.release()

    # Facts, in short forms for passes and rules ---------------------------------------------

    def shape(self, value: ir.Value) -> tuple[Dim, ...] | None:
        """The dims of ``value``: ints, or expressions over symbols; ``None`` if the rank is unknown."""
        return self.facts.shape(value)

    def static_shape(self, value: ir.Value) -> tuple[int, ...] | None:
        """The dims of ``value`` if every one is a known int."""
        return ir.all_ints(self.facts.shape(value))

    def rank(self, value: ir.Value) -> int | None:
        """The number of dims of ``value``."""
        return self.facts.rank(value)

    def dtype(self, value: ir.Value) -> ir.DataType | None:
        """The element type of ``value``; ``None`` if unknown, or not a tensor."""
        return self.facts.dtype(value)

    def known_ints(self, value: ir.Value) -> tuple[Dim, ...] | None:
        """The contents of a small integer tensor of rank 0 or 1, perhaps symbolic."""
        return self.facts.known_ints(value)

    def static_ints(self, value: ir.Value | None) -> tuple[int, ...] | None:
        """The contents of a small integer tensor if every one is a known int."""
        return None if value is None else ir.all_ints(self.facts.known_ints(value))

    def constant(self, value: ir.Value | None) -> np.ndarray | None:
        """The contents of constant ``value``, whatever its size; ``None`` if it is not constant."""
        tensor = ir.constant_of(value)
        if tensor is None:
            return None
        ir.read(value)
        return tensor.numpy()

    def fill(self, value: ir.Value | None) -> np.generic | None:
        """The number that every element of ``value`` is, bit by bit; ``None`` if it is not known.

        ``value`` may be a constant or computed, and of any shape, also an unknown one, or empty.
        """
        number = None if value is None else self.facts.fill(value)
        if number is not None and ir.constant_of(value) is not None:
            ir.read(value)
        return number

    def is_tied(self, value: ir.Value) -> bool:
        """Whether ``value`` is constant, and shares its bytes with another constant from the start.

        What replaces it does not free them, and another tensor in its place would split the tie.
        """
        tensor = ir.constant_of(value)
        if tensor is None:
            return False
        if self._tied is None:
            self._tied = ir.tied_storages(self.model)
        return bool(self._tied) and ir.storage_of(tensor) in self._tied

    def renew_ties(self) -> None:
        """Forget constants that share their bytes with no other any more."""
        if self._tied:
            self._tied = ir.tied_storages(self.model)

    def version(self, node: ir.Node) -> int:
        """The opset version of ``node``'s domain where it stands."""
        return self.edit.scopes.version(node)

    def is_deterministic(self, node: ir.Node) -> bool:
        """Whether ``node`` is known to give the same outputs for the same inputs."""
        return traits.is_deterministic(node, self.model.functions)

    def has_to_run(self, node: ir.Node) -> bool:
        """Whether ``node`` stays though nothing reads it: guards are there to be checked."""
        return dialects.has_guards(node, self.model.functions)

    @property
    def costs(self) -> Costs:
        """What fused operators take on the device that the result is for."""
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
        """Which of the fused operators ``ops`` is fastest here, or whether to leave the nodes that are there.

        >>> cx.weigh("MultiHeadAttention", "Attention", by=rule, at=[value], length=128).op # doctest: +SKIP
        'Attention'

        Args:
            ops: operators, or passes, that have figures in the table of costs.
            by: the rule or pass that would write the operator, for reports.
            at: outputs of the nodes concerned, the most telling first.
            case: what else matters, such as ``causal``.
            dtype: the element type.
            sizes: by the names of the table's axes; symbolic ones count as unknown.
        """
        name = None if dtype is None else dtype.name.lower()
        decision = self.costs.weigh(*ops, case=case, dtype=name, **sizes)
        self.decisions[decision] += 1
        self.weighed[by, tuple(value.name or "" for value in at)] = decision
        return decision

    # Changes ------------------------------------------------------------------------------

    def begin_rewrite(self, owner: str, node: ir.Node) -> Action | None:
        """Begin a rewrite of ``node`` by rule or pass ``owner``; ``None`` if it must not be made.

        Passes call this before each rewrite, so that bisect can find the one at fault.
        """
        action = Action(self.actions + 1, owner, ir.label(node))
        if self.gate is not None and not self.gate(action):
            self.denied = self.denied or action
            return None
        if self.actions == self.most_actions:
            reached = f"{self.actions:,} rewrites, the latest by {owner}"  # which may not be the one at fault
            raise PassFailed(f"rewriting does not come to an end: {reached}", owner=owner, endless=True)
        self.actions += 1
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
        """Whether rule ``owner`` is excluded at ``node`` because it is known to fail there."""
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
        """Infer every fact from the current model, without facts that removed nodes left behind."""
        self.facts = self.facts.rebuild(self.edit)
        self.facts.infer_all()

    def end_rewrite(self, action: Action, root: ir.Node, made: list[ir.Node]) -> None:
        """Report the finished rewrite ``action``, which replaced ``root`` by ``made``, to the observers."""
        self.commit_reads()
        for observer in self.observers:
            observer.rewrote(action, root, made)

    def commit_reads(self, epoch: int | None = None) -> None:
        """Keep which constants were read for the change that was made.

        Args:
            epoch: of the editor before; without a change since, what was read is forgotten.
        """
        contents = ir.contents_of(self.model)
        if contents is None:
            return
        if epoch == self.edit.epoch:
            contents.begin()
        else:
            contents.commit()

    def forget_reads(self) -> None:
        """Forget which constants were read: no change follows from that."""
        contents = ir.contents_of(self.model)
        if contents is not None:
            contents.begin()

    def refuse(self, refusal: Refusal) -> None:
        """Tell observers why a place was left alone."""
        for observer in self.observers:
            observer.refused(refusal)

    def say(self, owner: str, message: Callable[[], str]) -> None:
        """Offer a remark to observers; the text is made only if somebody listens."""
        for observer in self.observers:
            observer.said(owner, message)


def context_for(
    model: ir.Model,
    options: Options | None = None,
    *,
    gate: Callable[[Action], bool] | None = None,
    observers: Sequence[Observer] = (),
) -> Context:
    """Everything that passes need to work on ``model``.

    >>> cx = context_for(model)                               # doctest: +SKIP
    >>> Pipeline.parse("dce", registry()).run(model, cx)      # doctest: +SKIP
    """
    from graphopt.analysis.shape_inference.shape_facts import ShapeFacts
    from graphopt.folding.evaluator import Evaluator
    from graphopt.ort.target import Target

    edit = ir.Editor(model)
    ir.track(model)
    options = options or Options()
    ranges = {name: (first, last or math.inf) for name, (first, last) in options.dim_ranges.items()}
    budget = Budget(options.time_limit, options.memory_limit)
    known = ShapeFacts.of(edit, ranges, budget)
    evaluator = Evaluator.of(model, edit.scopes, budget=budget, filled=known.is_nonempty)
    return Context(
        model, edit, known, Target(options.device), evaluator, options, budget, gate, list(observers)
    )
