"""Apply rules to a fixpoint, with a worklist indexed by operator.

Each node is matched against the rules whose root is its operator, and again only after a change in its
neighbourhood, so the number of match attempts is linear in the size of the model.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterable, Sequence

from graphopt import ir
from graphopt.context import Action, Context, Refusal
from graphopt.errors import PassFailed, ResourceLimit
from graphopt.rewrite.match import Match
from graphopt.rewrite.ort_vetoes import OrtVetoes
from graphopt.rewrite.proposed_rewrite import ProposedRewrite
from graphopt.rewrite.replaced_nodes import replaced_nodes
from graphopt.rewrite.replacement_builder import Builder
from graphopt.rewrite.rule import Rule
from graphopt.rewrite.rule_application import try_rule
from graphopt.rewrite.rule_index import Candidate, RuleIndex
from graphopt.util.argument_checks import checked

#: Maximum number of rewrites per initial node; a higher number counts as non-termination.
_REWRITES_PER_NODE = 20
#: Number of last rewrites that are searched for the rules at fault after non-termination.
_LATEST = 100
#: The error also names each rule that made at least this many of these rewrites.
_RIVALRY = 10


@checked
def apply_rules(rules: Sequence[Rule], model: ir.Model, cx: Context) -> int:
    """Rewrite ``model``, bodies and functions included, until no rule applies.

    Returns the number of rewrites.

    Raises:
        PassFailed: a rule fails, or rewriting does not terminate.
    """
    return _Run(RuleIndex(rules), cx).run()


class _Run:
    def __init__(self, index: RuleIndex, cx: Context) -> None:
        self._index = index
        self._cx = cx
        self._queue: deque[ir.Node] = deque()
        self._queued: set[ir.Node] = set()
        self._vetoes = OrtVetoes(cx)
        self._reads = ir.read_record_of(cx.model)
        for graph in cx.graphs:
            # rules of the caller may inspect nodes at any distance
            for node in graph if cx.options.rules else cx.nodes_to_visit(graph):
                self._push(node)

    def _push(self, node: ir.Node | None) -> None:
        if node is not None and node not in self._queued and node in self._index:
            self._queue.append(node)
            self._queued.add(node)

    def run(self) -> int:
        done, limit = 0, 100 + _REWRITES_PER_NODE * len(self._queue)
        latest: deque[str] = deque(maxlen=_LATEST)
        while self._queue:
            node = self._queue.popleft()
            self._queued.discard(node)
            for candidate in self._index.candidates(node):
                if node.graph is None:
                    break
                if self._try(candidate, node):
                    done += 1
                    latest.append(candidate.rule.name)
                    if done > limit:
                        raise self._no_end(latest, done)
                    break
        self._cx.forget_reads()
        return done

    def _no_end(self, latest: Iterable[str], done: int) -> PassFailed:
        """The failure after ``done`` rewrites, which exceed the limit.

        The error names the most frequent of the last rules, preferring rules of the caller: graphopt's own
        are tested with each other.
        """
        own = [rule.name for rule in self._cx.options.rules]
        ranked = sorted(Counter(latest).most_common(), key=lambda item: item[0] not in own)
        (owner, _), *others = ranked
        return PassFailed.no_end(owner, done, [name for name, count in others if count >= _RIVALRY])

    def _try(self, candidate: Candidate, root: ir.Node) -> bool:
        cx, rule = self._cx, candidate.rule
        if cx.options.refused and cx.is_blocked(rule.name, root):
            return False
        cx.attempts += 1
        if self._reads is not None and self._reads.pending:
            self._reads.begin()
        found = candidate.compiled.match(root, cx)
        if found is None:
            return False
        bindings, nodes = found
        match = Match(rule.name, root, nodes, cx)
        builder = Builder(cx, root)
        try:
            result = try_rule(rule, match, bindings, builder)
        except (ResourceLimit, MemoryError):
            raise
        except Exception as error:
            owner, node = rule.name, ir.label(root)
            raise PassFailed.of(error, f"rule {owner} at {node}", owner=owner, node=node) from error
        if isinstance(result, Refusal):
            builder.discard()
            cx.refuse(result)
            return False
        values = result if isinstance(result, tuple) else (result,)
        rewrite = ProposedRewrite(root, values, match.nodes, builder.made, self._index.has_workaround)
        if (reason := self._vetoes.reason_against(rewrite)) is not None:
            builder.discard()
            cx.refuse(match.no(reason))
            return False
        if not self._is_progress(root, values) or (action := cx.begin_rewrite(rule.name, root)) is None:
            builder.discard()
            return False
        self._commit(action, match, builder, values, is_fusion=rule.is_fusion)
        return True

    def _is_progress(self, root: ir.Node, values: tuple[ir.Value | None, ...]) -> bool:
        """Whether replacing the root does more than replace an Identity by an Identity."""
        if root.op_type != "Identity" or values[0] is None:
            return True
        return self._cx.edit.can_replace(root.outputs[0], values[0])

    def _commit(
        self,
        action: Action,
        match: Match,
        builder: Builder,
        values: tuple[ir.Value | None, ...],
        *,
        is_fusion: bool,
    ) -> None:
        edit, root = self._cx.edit, match.root
        made = builder.commit()
        edit.note_origin(made, match.nodes, action.owner)
        fresh = {output for node in made for output in node.outputs}
        before = [value for node in match.nodes for value in node.inputs if value is not None]
        known = dict.fromkeys(value for node in made for value in ir.reads(node))
        known |= {value: None for value in values if value is not None and value not in fresh}
        replaced = replaced_nodes(root, match.nodes, known)
        further = [node for node in replaced if node not in match.nodes]  # new nodes have the other origins
        for old, new in zip(root.outputs, values, strict=False):
            if new is None:
                continue
            was_output, readers = old.is_graph_output(), [reader for reader, _ in old.uses()]
            edit.replace(old, new)
            edit.note_replaced(new, further if new in fresh else replaced)
            if new in fresh and not was_output:
                fresh.discard(new)
                edit.transfer_name(new, old)
            for reader in readers:
                self._push(reader)
        for node in made:
            self._push(node)
        removed = self._remove_dead(match.nodes)
        if is_fusion and made:  # a fused operator also replaces nodes read outside the pattern
            more = [node for node in removed if node.op_type != "Constant" and node not in match.nodes]
            edit.note_origin(made, [made[0], *more], action.owner)
        for value in before:
            self._push(value.producer())
            # a value with one remaining reader may match patterns that need exclusive use
            self._push(ir.only_reader(value))
        self._cx.end_rewrite(action, root, made)

    def _remove_dead(self, nodes: Iterable[ir.Node]) -> list[ir.Node]:
        """Remove unused ``nodes``, and producers that only they read; returns the removed nodes."""
        pending, removed = list(nodes), []
        while pending:
            node = pending.pop()
            if node.graph is None or any(map(ir.is_read, node.outputs)) or self._cx.has_to_run(node):
                continue
            producers = [value.producer() for value in node.inputs if value is not None]
            self._cx.edit.remove_with_bodies(node)
            removed.append(node)
            pending.extend(producer for producer in producers if producer is not None)
        return removed
