"""Check the lineage of optimized models by cutting: the original nodes named for a node compute its value.

    python -m benchmarks.lineage DIR MODEL.onnx [--pipeline O3] [--most 1000]

Each model below the given folders is optimized with its lineage. A value that exists under one name in the
original and in the result has the same contents. For such a value, the region of the result that computes it
from other such values is traversed, and the original nodes of all nodes of the region are cut out of the
original. The cut runs alone, on the values that the *result* has at the inputs of the region, and has to
reproduce the value. The cut may read another value only if it does not depend on the values of inputs, as
computations of shapes, or if it equals an input of the region, as duplicates and views. Everything else is
missing from the named set.

A changed Constant node has to equal a value that the named nodes compute. Bodies and functions are checked
like the main graph, on the values of their inputs (:mod:`benchmarks.nested_graphs`).

Only regions with changed nodes are checked. Status 1 if a value is not reproduced.
"""

from __future__ import annotations

import argparse
import sys
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

import graphopt
from benchmarks.nested_graphs import GraphPair, nested_pairs
from graphopt import ir
from graphopt.inputs.feeds import InputOptions
from graphopt.instrument.lineage import Lineage
from graphopt.ort.devices import CPU
from graphopt.ort.model_runs import Runs
from graphopt.verification.inner_tensors.chunked_run import ChunkedRun, SessionKind
from graphopt.verification.inner_tensors.compare_models import Side, chunks_for, valid_feeds
from graphopt.verification.inner_tensors.matched_values import compared_values
from graphopt.verification.inner_tensors.tensor_comparison import Tolerances, compare_tensors
from graphopt.verification.model_parts import Region, types_of
from graphopt.verification.numeric_traits import traits_of_values
from graphopt.verification.output_comparison import identical, leaves
from graphopt.verification.runners import Runners
from graphopt.verification.session_memory import Weights

Values = Mapping[str, Any]


@dataclass
class Outcome:
    """The outcome for one model.

    Attributes:
        checked: the number of regions whose value is reproduced.
        nodes: the nodes of the result in these regions.
        changed: the number of changed nodes of the result.
        faults: descriptions of the others.
        unchecked: the number of changed nodes in graphs that could not be checked, by reason.
    """

    checked: int = 0
    nodes: int = 0
    changed: int = 0
    faults: list[str] = field(default_factory=list)
    unchecked: Counter[str] = field(default_factory=Counter)


def values_of(model: ir.Model, feeds: Values) -> dict[str, Any]:
    """All values of the main graph on ``feeds``, without optimizations."""
    runners = Runners(model, CPU, threads=1, memory=None, isolate=False)
    try:
        run = ChunkedRun("model", chunks_for(model, compared_values(model), feeds), runners, SessionKind(CPU))
        found = dict(feeds)
        for values in run.stream(feeds):
            found |= values
        return found
    finally:
        runners.close()


def two_feeds(model: ir.Model) -> list[Values]:
    """Two sets of inputs of the same shapes."""
    runners = Runners(model, CPU, threads=1, memory=None, isolate=False)
    side = Side("model", model, SessionKind(CPU))
    try:
        first = valid_feeds(side, runners, InputOptions())
        shapes = {name: value.shape for name, value in first.items() if isinstance(value, np.ndarray)}
        return [first, valid_feeds(side, runners, InputOptions(shapes=shapes, seed=1))]
    finally:
        runners.close()


@dataclass(frozen=True)
class Checker:
    """Checks regions of a result.

    Attributes:
        pair: the models, with all of their values on two sets of inputs.
        lineage: the lineage of the result.
        shared: the names of values of both.
    """

    pair: GraphPair
    lineage: Lineage
    shared: Mapping[str, None]

    def run(self, most: int, outcome: Outcome) -> None:
        """Check up to ``most`` regions, evenly distributed over the model, and all Constant nodes."""
        found = [
            (value, *self._region(value))
            for value in compared_values(self.pair.result)
            if value.name in self.shared
        ]
        outcome.changed += sum(map(self.is_changed, self.pair.result.graph))
        found = [one for one in found if any(map(self.is_changed, one[1]))]
        step = max(1, -(-len(found) // most))
        nodes = self.pair.nodes
        traits = {value.name: one for value, one in traits_of_values(self.pair.original).items()}
        covered: dict[ir.Node, None] = {}
        for value, region, inputs in found[::step]:
            fault = self._fault(value, region, inputs, nodes, traits)
            self._count(fault, value, region, covered, outcome)
        for node in self.pair.result.graph:
            if node.op_type == "Constant" and self.is_changed(node):
                readers = ir.readers(node.outputs[0])
                is_operand = all(reader in covered for reader in readers if self.is_changed(reader))
                fault = self._fault_of_constant(node, nodes, traits, is_operand=is_operand)
                self._count(fault, node.outputs[0], [node], covered, outcome)
        outcome.nodes += len(covered)

    def _count(
        self,
        fault: str | None,
        value: ir.Value,
        region: Sequence[ir.Node],
        covered: dict[ir.Node, None],
        outcome: Outcome,
    ) -> None:
        if fault is None:
            outcome.checked += 1
            covered |= dict.fromkeys(filter(self.is_changed, region))
        else:
            outcome.faults.append(f"{value.name}: {fault}")

    def is_changed(self, node: ir.Node) -> bool:
        found = self.pair.lineage_of(node, self.lineage)
        return found is not None and not found.is_original

    def _region(self, value: ir.Value) -> tuple[list[ir.Node], list[str]]:
        """The nodes of the result between ``value`` and shared values or inputs, and the names of these."""
        pending, nodes, inputs = [value], dict[ir.Node, None](), dict[str, None]()
        while pending:
            node = pending.pop().producer()
            if node is None or node in nodes:
                continue
            nodes[node] = None
            for read in ir.reads(node):
                if ir.constant_of(read) is not None:
                    continue
                if read.producer() is None or read.name in self.shared:
                    inputs[read.name or ""] = None
                else:
                    pending.append(read)
        return list(nodes), list(inputs)

    def _named(self, region: Sequence[ir.Node], nodes: Mapping[str, ir.Node]) -> dict[ir.Node, None]:
        """The original nodes that the lineage names for ``region``; a node in a call is the call."""
        found: dict[ir.Node, None] = {}
        for node in region:
            known = self.pair.lineage_of(node, self.lineage)
            for name in () if known is None else (*known.originals, *known.absorbed, *known.folded):
                while name not in nodes and "/" in name.lstrip("/"):
                    name = name.rpartition("/")[0]
                if name in nodes:
                    found[nodes[name]] = None
        return found

    def _fault(
        self,
        value: ir.Value,
        region: Sequence[ir.Node],
        inputs: Sequence[str],
        nodes: Mapping[str, ir.Node],
        traits: Mapping[str | None, Any],
    ) -> str | None:
        """The reason why the named nodes do not compute ``value``; ``None`` if they do."""
        named = self._named(region, nodes)
        goal = next(
            one for node in self.pair.original.graph for one in node.outputs if one.name == value.name
        )
        if goal.producer() not in named:
            return f"its node {ir.label(goal.producer())!r} is not named"  # type: ignore[arg-type]
        expected = [values[goal.name or ""] for values in self.pair.after]
        return self._fault_of_cut(goal, named, inputs, expected, traits)

    def _fault_of_constant(
        self,
        node: ir.Node,
        nodes: Mapping[str, ir.Node],
        traits: Mapping[str | None, Any],
        *,
        is_operand: bool,
    ) -> str | None:
        """The reason why the named nodes do not compute the contents of the Constant ``node``.

        A rule may compute contents that the original has nowhere. Then the named nodes have to exist, and
        the values of the readers have to be reproduced (``is_operand``).
        """
        tensor = ir.constant_of(node.outputs[0])
        assert tensor is not None
        contents, named = tensor.numpy(), self._named([node], nodes)
        for value in (value for original in named for value in original.outputs):
            constant = ir.constant_of(value)
            if constant is not None:
                if identical(constant.numpy(), contents):
                    return None
                continue
            values = [one.get(value.name or "") for one in self.pair.before]
            if all(one is not None and identical(one, contents) for one in values):
                return self._fault_of_cut(value, named, (), [contents, contents], traits)
        known = self.pair.lineage_of(node, self.lineage)
        if named and is_operand and known is not None and all(one in nodes for one in known.originals):
            return None
        return "no named node computes its contents"

    def _fault_of_cut(
        self,
        goal: ir.Value,
        named: Mapping[ir.Node, None],
        inputs: Sequence[str],
        expected: Sequence[Any],
        traits: Mapping[str | None, Any],
    ) -> str | None:
        """The reason why the ``named`` nodes, alone, do not compute ``expected``; ``None`` if they do."""
        cut = self._cut(goal, named, inputs)
        feeds: list[dict[str, Any]] = [{}, {}]
        for read in Region(self.pair.original, cut, (goal,), Weights.of(())).graph_inputs():
            name = read.name or ""
            if (found := self._admissible(name, inputs)) is None:
                return f"it reads {name!r}, which is neither named nor read by the node"
            for own, one in zip(feeds, found, strict=True):
                own[name] = one
        model = Region(self.pair.original, cut, (goal,), Weights.of(())).to_model(types_of(feeds[0]))
        run = Runs(ir.to_bytes(model), CPU, 1)
        for own, wanted in zip(feeds, expected, strict=True):
            one = traits[goal.name]
            error = compare_tensors(run.run("off", own)[0], wanted, (one, one), Tolerances())
            if error.reason is not None:
                return error.reason
        return None

    def _admissible(self, name: str, inputs: Sequence[str]) -> list[Any] | None:
        """The values that a cut may read for the value ``name``; ``None`` if it may not read it."""
        if name in inputs:
            return [one[name] for one in self.pair.after]
        values = [one[name] for one in self.pair.before]
        if identical(*values):
            return values
        for given in inputs:
            if all(_same_elements(one[name], one.get(given)) for one in self.pair.before):
                return [
                    np.reshape(one[given], value.shape)
                    for one, value in zip(self.pair.after, values, strict=True)
                ]
        return None

    def _cut(
        self, goal: ir.Value, named: Mapping[ir.Node, None], inputs: Sequence[str]
    ) -> tuple[ir.Node, ...]:
        """The ``named`` nodes that compute ``goal`` from admissible values."""
        pending, found = [goal], dict[ir.Node, None]()
        while pending:
            value = pending.pop()
            node = value.producer()
            if node is None or node in found or node not in named or ir.constant_of(value) is not None:
                continue
            if value is not goal and self._admissible(value.name or "", inputs) is not None:
                continue
            found[node] = None
            pending += ir.reads(node)
        return tuple(node for node in self.pair.original.graph if node in found)


def _same_elements(a: Any, b: Any) -> bool:
    """Whether two tensors have the same elements in the same order, in any shape."""
    ours, theirs = leaves(a), leaves(b)
    return len(ours) == len(theirs) and all(
        x.size == y.size and identical(x.reshape(-1), y.reshape(-1))
        for x, y in zip(ours, theirs, strict=True)
    )


def check(path: Path, pipeline: str, most: int) -> Outcome:
    """Check the lineage of the model at ``path``."""
    original = graphopt.load_model(path)
    result = graphopt.optimize(path, pipeline=pipeline, device="cpu", verify=False, provenance=True).model
    lineage = Lineage.read(result)
    assert lineage is not None
    outcome, feeds = Outcome(), two_feeds(original)
    check_graph(GraphPair(original, result, feeds, feeds), lineage, most, outcome)
    return outcome


def check_graph(pair: GraphPair, lineage: Lineage, most: int, outcome: Outcome) -> None:
    """Check a graph and the graphs nested in it; ``pair`` has the values of the inputs."""
    before = [values_of(pair.original, one) for one in pair.before]
    after = [values_of(pair.result, one) for one in pair.after]
    produced = {value.name: None for value in compared_values(pair.original)}
    shared = {value.name or "": None for value in compared_values(pair.result) if value.name in produced}
    found = replace(pair, before=before, after=after)
    checker = Checker(found, lineage, shared)
    checker.run(most, outcome)
    for graph, nested in nested_pairs(found, lineage):
        reason = (
            "no counterpart in the original (a merged body, or one in an inlined body), or unknown inputs"
        )
        if nested is not None:
            try:
                check_graph(nested, lineage, most, outcome)
                continue
            except graphopt.GraphoptError as error:
                reason = error.message
        if changed := sum(map(checker.is_changed, ir.walk_nodes(graph))):
            outcome.unchecked[reason] += changed


def models(paths: Sequence[Path]) -> Iterator[Path]:
    """The models at ``paths``, and in their folders."""
    for path in paths:
        yield from sorted(path.rglob("*.onnx")) if path.is_dir() else [path]


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("paths", nargs="+", type=Path)
    parser.add_argument("--pipeline", default="O3")
    parser.add_argument("--most", type=int, default=1000, help="maximum number of regions of a model")
    arguments = parser.parse_args()
    total = Counter[str]()
    for path in models(arguments.paths):
        try:
            found = check(path, arguments.pipeline, arguments.most)
        except graphopt.GraphoptError as error:
            print(f"{path.name:36} not checked: {error}", flush=True)
            total["not checked"] += 1
            continue
        counts = f"{found.checked} values reproduced, {found.nodes} of {found.changed} changed nodes"
        print(f"{path.name:36} {counts}, {len(found.faults)} faults", flush=True)
        for fault in found.faults:
            print(f"    {fault}", flush=True)
        for reason, count in found.unchecked.items():
            print(f"    {count} changed nodes of a nested graph: {reason}", flush=True)
        total += Counter(models=1, reproduced=found.checked, nodes=found.nodes, changed=found.changed)
        total["in unchecked graphs"] += sum(found.unchecked.values())
        total["faults"] += len(found.faults)
    print(dict(total))
    return int(total["faults"] > 0)


if __name__ == "__main__":
    sys.exit(main())
