"""Compare gradients of onnx's node tests with finite differences.

    python -m benchmarks.gradients                    all operators
    python -m benchmarks.gradients --only 'reduce_|pad'   tests whose names match
    python -m benchmarks.gradients --json out.json    with every test's verdict
    python -m benchmarks.gradients --split             forward and backward models against the joint graph
    python -m benchmarks.gradients --by-group          gradients of groups against those of the whole model
    python -m benchmarks.gradients --peer --docs docs/gradients.md   compare with onnx-ad; rebuild the table

The expected derivative is a central difference of onnx's reference evaluator, in float64, in a random
direction for each input. Two step sizes and both sides must agree; otherwise the test is skipped (kinks,
random operators, integer results). Integer inputs are fixed. The joint graph runs in onnxruntime, without and
with its optimizations.
"""

from __future__ import annotations

import json
import re
import sys
import time
import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, field
from functools import partial

import numpy as np
import onnx
from onnx.backend.test.case.node import collect_testcases
from onnx.reference import ReferenceEvaluator

from benchmarks.backward_models import Adjoint, Differentiator, Refused, Unloadable, by_graphopt, by_onnx_ad
from benchmarks.doc_tables import markdown_table, publish
from benchmarks.measured_models import arguments
from benchmarks.split_step import difference, run_model, same_results
from graphopt import ir
from graphopt.autodiff.differentiate_by_group import ByGroup
from graphopt.autodiff.joint_graph import Joint, differentiate
from graphopt.autodiff.split_joint import split
from graphopt.errors import GraphoptError, RuntimeFailure
from graphopt.ops import traits
from graphopt.ort import session

#: Relative step sizes. They must agree to AGREES.
STEPS = (1e-5, 1e-6)
AGREES = 1e-4
#: Tolerance of float32 gradients, relative to the sum of the magnitudes of their terms.
TOLERANCE = 2e-3
#: Distance from a test's inputs at which runtimes must agree, too, for a differing gradient to be wrong.
NEARBY = 0.1
#: Maximum number of input elements: above it, runs of the reference evaluator are too slow.
LARGEST = 300_000
_SINGLE = (onnx.TensorProto.FLOAT, onnx.TensorProto.FLOAT16, onnx.TensorProto.BFLOAT16)
#: The newest IR version and opset that onnxruntime 1.31 reads; most operators have the same semantics there.
NEWEST_IR, NEWEST_OPSET = 11, 26
FLOATS = (np.float32, np.float64, np.float16)


@dataclass
class Outcome:
    """The result of a test.

    Attributes:
        verdict: ``right``, ``refused``, ``wrong``, ``broken`` (the joint graph does not run), ``unfit`` for
            finite differences, or ``unloadable``.
    """

    name: str
    op: str
    verdict: str
    reason: str = ""
    nodes: int = 0


@dataclass
class Case:
    """A node test: its model, its inputs, and what varies.

    Attributes:
        varied: inputs of floating-point numbers.
        real: outputs of floating-point numbers.
    """

    name: str
    model: onnx.ModelProto
    feeds: dict[str, np.ndarray]
    varied: list[str] = field(default_factory=list)
    real: list[str] = field(default_factory=list)

    @property
    def op(self) -> str:
        """The operator under test."""
        nodes = self.model.graph.node
        return nodes[0].op_type if len(nodes) == 1 else f"{self.name.removeprefix('test_')} (several)"


def cases(only: str | None = None) -> Iterator[Case]:
    """The tests with a floating-point input and output."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        found = collect_testcases(None)
    for test in found:
        if test.model is None or not test.data_sets or (only and not re.search(only, test.name)):
            continue
        inputs, outputs = test.data_sets[0]
        names = [item.name for item in test.model.graph.input]
        if not all(isinstance(value, (np.ndarray, np.generic)) for value in (*inputs, *outputs)):
            continue
        feeds = {name: np.asarray(value) for name, value in zip(names, inputs, strict=False)}
        test.model.ir_version = min(test.model.ir_version, NEWEST_IR)
        for imported in test.model.opset_import:
            if imported.domain in ("", "ai.onnx"):
                imported.version = min(imported.version, NEWEST_OPSET)
        case = Case(test.name, test.model, feeds)
        case.varied = [name for name, value in feeds.items() if value.dtype in FLOATS and value.size]
        case.real = [
            item.name
            for item, value in zip(test.model.graph.output, outputs, strict=False)
            if np.asarray(value).dtype in FLOATS and np.asarray(value).size
        ]
        if case.varied and case.real and sum(value.size for value in feeds.values()) <= LARGEST:
            yield case


def doubled(model: onnx.ModelProto) -> onnx.ModelProto:
    """``model`` in float64, as far as the reference evaluator depends on types."""
    copy = onnx.ModelProto()
    copy.CopyFrom(model)
    pending = [copy.graph]
    while pending:
        graph = pending.pop()
        for tensor in graph.initializer:
            _double(tensor)
        for node in graph.node:
            for attribute in node.attribute:
                if attribute.type == onnx.AttributeProto.GRAPH:
                    pending.append(attribute.g)
                elif attribute.type == onnx.AttributeProto.TENSOR:
                    _double(attribute.t)
                elif attribute.name in ("to", "dtype") and attribute.i in _SINGLE:
                    attribute.i = onnx.TensorProto.DOUBLE
                elif node.op_type == "Constant" and attribute.name in ("value_float", "value_floats"):
                    numbers = np.array(onnx.helper.get_attribute_value(attribute), np.float64)
                    attribute.CopyFrom(
                        onnx.helper.make_attribute("value", onnx.numpy_helper.from_array(numbers))
                    )
    return copy


def _double(tensor: onnx.TensorProto) -> None:
    if tensor.data_type in _SINGLE:
        numbers = onnx.numpy_helper.to_array(tensor).astype(np.float64)
        tensor.CopyFrom(onnx.numpy_helper.from_array(numbers, tensor.name))


class Differences:
    """Directional derivatives of a test by finite differences."""

    def __init__(self, case: Case) -> None:
        if not all(traits.is_deterministic(node, {}) for node in ir.from_proto(case.model).graph):
            raise ValueError("it draws numbers")
        self._case = case
        self._evaluator = ReferenceEvaluator(doubled(case.model))
        self._random = np.random.default_rng(0)
        self._point = {
            name: value.astype(np.float64) if name in case.varied else value
            for name, value in case.feeds.items()
        }
        outputs = self._outputs(self._point)
        self.cotangents = {name: self._random.standard_normal(outputs[name].shape) for name in case.real}

    def _outputs(self, feeds: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
        names = [item.name for item in self._case.model.graph.output]
        with warnings.catch_warnings(), np.errstate(all="ignore"):
            warnings.simplefilter("ignore")
            found = self._evaluator.run(None, feeds)
        return {name: np.asarray(value) for name, value in zip(names, found, strict=True)}

    def _weighed(self, feeds: dict[str, np.ndarray]) -> float:
        outputs = self._outputs(feeds)
        total = 0.0
        for name, cotangent in self.cotangents.items():
            total += float(np.sum(cotangent * outputs[name].astype(np.float64)))
        return total

    def differ_in_onnxruntime(self) -> bool:
        """Whether onnxruntime and the reference evaluator disagree at the inputs or nearby."""
        running = session.create(self._case.model.SerializeToString(), threads=1)
        types = {name: value.dtype for name, value in self._case.feeds.items()}
        moves = {name: self._random.standard_normal(self._point[name].shape) for name in self._case.varied}
        for step in (0.0, NEARBY, -NEARBY):
            moved = {name: self._point[name] + step * move for name, move in moves.items()}
            feeds = {name: np.asarray(x, types[name]) for name, x in {**self._point, **moved}.items()}
            own = self._outputs({**feeds, **{name: feeds[name].astype(np.float64) for name in moves}})
            found = session.run(running, feeds, self._case.real)
            for name, value in zip(self._case.real, found, strict=True):
                known = own[name]
                if value.shape != known.shape:
                    return True
                if not np.allclose(value, known, rtol=TOLERANCE, atol=TOLERANCE, equal_nan=True):
                    return True
        return False

    def along(self, name: str) -> tuple[np.ndarray, float] | None:
        """A direction for an input and the derivative along it; ``None`` if it does not exist."""
        x = self._point[name]
        direction = self._random.standard_normal(x.shape)
        scale = max(1.0, float(np.max(np.abs(x)))) if np.isfinite(x).all() else 1.0
        middle = self._weighed(self._point)
        slopes = []
        for step in STEPS:
            h = step * scale
            up = self._weighed({**self._point, name: x + h * direction})
            down = self._weighed({**self._point, name: x - h * direction})
            slopes.append(((up - down) / (2 * h), (up - middle) / h, (middle - down) / h))
        if not np.isfinite(slopes).all():
            return None
        (first, *_), (second, right, left) = slopes
        size = max(1.0, abs(first))
        if abs(first - second) > AGREES * size or abs(right - left) > 1e-2 * size:
            return None
        return direction, first


def judge(case: Case, by: Differentiator = by_graphopt) -> Outcome:
    """Differentiate a test's model, and compare."""
    outcome = Outcome(case.name, case.op, "unfit")
    known = {}
    outcome.reason = "no derivative in any direction"
    try:
        differences = Differences(case)
    except Exception as error:  # the reference evaluator's own, of any kind
        outcome.reason = f"{type(error).__name__}: {error}"[:120]
        return outcome
    for name in case.varied:
        try:
            found = differences.along(name)
        except Exception as error:  # likewise; scales of a Resize may change shapes
            outcome.reason = f"{type(error).__name__}: {error}"[:120]
        else:
            if found is not None:
                known[name] = found
    if not known:
        return outcome
    outcome.reason = ""
    try:
        adjoint = by(case.model, case.real, sorted(known))
    except Refused as error:
        outcome.verdict, outcome.reason = _who_fails(case, "refused", str(error))
        return outcome
    except Unloadable as error:
        return Outcome(case.name, case.op, "unloadable", str(error))
    outcome.nodes = adjoint.nodes
    if count_lossy(onnx.load_from_string(adjoint.data)) > count_lossy(case.model):
        outcome.verdict, outcome.reason = "wrong", "a ScatterND that reduces loses terms with several threads"
    else:
        outcome.verdict, outcome.reason = _compared(case, adjoint, differences, known)
    return outcome


def count_lossy(model: onnx.ModelProto) -> int:
    """The number of ScatterND nodes with reduction, which lose terms in onnxruntime with several threads."""
    found, pending = 0, [model.graph]
    while pending:
        for node in pending.pop().node:
            names = {attribute.name for attribute in node.attribute}
            found += node.op_type == "ScatterND" and "reduction" in names
            pending += [attribute.g for attribute in node.attribute if attribute.HasField("g")]
    return found


def _compared(
    case: Case, adjoint: Adjoint, differences: Differences, known: dict[str, tuple[np.ndarray, float]]
) -> tuple[str, str]:
    types = {item.name: item.type.tensor_type.elem_type for item in case.model.graph.output}
    cotangents = {
        name: value.astype(onnx.helper.tensor_dtype_to_np_dtype(types[name]))
        for name, value in differences.cotangents.items()
    }
    feeds = {**case.feeds, **adjoint.feeds(cotangents)}
    for optimizations in ("off", "default"):
        try:
            running = session.create(adjoint.data, optimizations=optimizations, threads=1)
            results = session.run(running, feeds, list(adjoint.found.values()))
        except RuntimeFailure as error:
            return _who_fails(case, "broken", error.message)
        for name, result in zip(adjoint.found, results, strict=True):
            direction, truth = known[name]
            gradient = adjoint.gradient(result)
            if gradient.shape != direction.shape:
                return "wrong", f"{name}: shape {gradient.shape} for {direction.shape}"
            terms = gradient.astype(np.float64) * direction
            if not np.isfinite(terms).all():
                return "wrong", f"{name}: not finite ({optimizations})"
            scale = max(1.0, float(np.abs(terms).sum()) / np.sqrt(terms.size), abs(truth))
            allowed = TOLERANCE * scale * (20 if gradient.dtype == np.float16 else 1)
            if abs(float(terms.sum()) - truth) > allowed:
                if differences.differ_in_onnxruntime():
                    return "unfit", "onnxruntime computes something else"
                return "wrong", f"{name}: {terms.sum():.5g} is {truth:.5g} ({optimizations})"
    return "right", ""


def _who_fails(case: Case, verdict: str, why: str) -> tuple[str, str]:
    """``verdict`` if onnxruntime runs the test; otherwise its gradient can't be judged."""
    try:
        session.run(session.create(case.model.SerializeToString(), threads=1), case.feeds)
    except RuntimeFailure as error:
        return "unfit", f"onnxruntime does not run it: {error.message}"
    return verdict, why


def summary(outcomes: list[Outcome]) -> list[str]:
    """Counts of right, refused and wrong by operator, with reasons for refused and wrong ones."""
    counts: dict[str, Counter[str]] = {}
    for outcome in outcomes:
        counts.setdefault(outcome.op, Counter())[outcome.verdict] += 1
    lines = []
    for op, found in sorted(counts.items()):
        if set(found) - {"right", "unfit"}:
            counted = "  ".join(f"{verdict} {number}" for verdict, number in sorted(found.items()))
            lines.append(f"{op:40} {counted}")
    for verdict in ("refused", "unloadable", "broken", "wrong"):
        reasons: dict[str, list[str]] = {}
        for outcome in outcomes:
            if outcome.verdict == verdict:
                reasons.setdefault(outcome.reason, []).append(outcome.name.removeprefix("test_"))
        for reason, names in sorted(reasons.items()):
            more = f" and {len(names) - 4} more" if len(names) > 4 else ""
            lines.append(f"{verdict}: {reason}\n    {', '.join(names[:4])}{more}")
    total = Counter(outcome.verdict for outcome in outcomes)
    return [*lines, "  ".join(f"{verdict} {total[verdict]}" for verdict in sorted(total))]


def comparison(ours: list[Outcome], theirs: list[Outcome]) -> str:
    """Counts of right, refused and wrong of both tools, over tests suited to finite differences."""
    pairs = [(a, b) for a, b in zip(ours, theirs, strict=True) if "unfit" not in (a.verdict, b.verdict)]
    both = [(a, b) for a, b in pairs if a.verdict == b.verdict == "right"]
    rows = []
    for name, side in (("graphopt", 0), ("onnx-ad", 1)):
        count = Counter(pair[side].verdict for pair in pairs)
        wrong = count["wrong"] + count["broken"]
        nodes = sum(pair[side].nodes for pair in both)
        rows.append((name, len(pairs), count["right"], count["refused"], wrong, f"{nodes:,}"))
    header = (
        "",
        "tests",
        "right",
        "refused",
        "wrong or not running",
        f"nodes of the {len(both)} gradients that are right with both tools",
    )
    return markdown_table(header, rows)


def split_of(case: Case, budget: float) -> tuple[str, str]:
    """Compare the split of a test's model with its joint graph; see :func:`difference`."""
    try:
        found = split(ir.from_proto(case.model), case.real, case.varied, memory_budget=budget)
    except GraphoptError as error:
        return "refused", error.message
    random = np.random.default_rng(0)
    try:
        outputs = session.run(
            session.create(case.model.SerializeToString(), threads=1), case.feeds, case.real
        )
    except RuntimeFailure as error:
        return "unfit", error.message
    given = {
        found.joint.cotangents[name]: np.asarray(random.standard_normal(value.shape), value.dtype)
        for name, value in zip(case.real, outputs, strict=True)
    }
    if not all(traits.is_deterministic(node, {}) for node in found.joint.model.graph):
        return "random", ""
    return difference(found, {**case.feeds, **given})


def by_group_of(case: Case) -> tuple[str, str]:
    """Compare gradients by group with those of the whole model: ``equal``, ``refused`` …; a reason."""
    model, found = ir.from_proto(case.model), list[Joint | str]()
    for by in (None, ByGroup(minimum=1)):
        try:
            found.append(differentiate(model, case.real, case.varied, by=by))
        except GraphoptError as error:
            found.append(error.message)
    whole, grouped = found
    if isinstance(whole, str) or isinstance(grouped, str):
        return ("refused" if whole == grouped else "different"), f"{whole} is {grouped}"
    if not all(traits.is_deterministic(node, {}) for node in whole.model.graph):
        return "random", ""
    random = np.random.default_rng(0)
    try:
        outputs = session.run(
            session.create(case.model.SerializeToString(), threads=1), case.feeds, case.real
        )
        cotangents = [np.asarray(random.standard_normal(value.shape), value.dtype) for value in outputs]
        feeds = case.feeds | dict(zip(whole.cotangents.values(), cotangents, strict=True))
        expected = run_model(whole.model, feeds, "off")
    except RuntimeFailure as error:
        return "unfit", error.message
    return same_results(expected, lambda: run_model(grouped.model, feeds, "off"))


def _judge(kind: str, tests: list[Case], judged: Callable[[Case], tuple[str, str]]) -> int:
    """Report the number of equivalent results; the exit status is 1 if any is not."""
    status, counts = 0, Counter[str]()
    for case in tests:
        verdict, reason = judged(case)
        counts[verdict] += 1
        if verdict in ("different", "broken"):
            print(f"{verdict}: {case.name}: {reason}")
            status = 1
    print(f"{kind}: " + "  ".join(f"{verdict} {counts[verdict]}" for verdict in sorted(counts)))
    return status


def main(words: list[str] | None = None) -> int:
    """Judge the tests; the exit status is 1 if any is wrong."""
    parser = arguments(__doc__.partition("\n")[0], models=False)
    parser.add_argument("--only", metavar="RE", help="tests whose names match")
    parser.add_argument("--split", action="store_true", help="only compare splits with joint graphs")
    parser.add_argument(
        "--by-group",
        action="store_true",
        help="only compare gradients by group with those of the whole model",
    )
    parser.add_argument("--peer", action="store_true", help="judge onnx-ad, too, and compare")
    options = parser.parse_args(words)
    start = time.perf_counter()
    tests = list(cases(options.only))
    if options.split:
        kinds = {f"budget {budget:g}": partial(split_of, budget=budget) for budget in (1.0, 0.0)}
        return max(_judge(kind, tests, judged) for kind, judged in kinds.items())
    if options.by_group:
        return _judge("by group", tests, by_group_of)
    outcomes = [judge(case) for case in tests]
    print("\n".join(summary(outcomes)))
    told = {"graphopt": [asdict(outcome) for outcome in outcomes]}
    if options.peer:
        theirs = [judge(case, by_onnx_ad) for case in tests]
        told["onnx-ad"] = [asdict(outcome) for outcome in theirs]
        publish(options, "onnx-ad", comparison(outcomes, theirs), told)
    elif options.json:
        options.json.write_text(json.dumps(told, indent=1) + "\n", encoding="utf-8")
    print(f"{time.perf_counter() - start:.0f} s", file=sys.stderr)
    return int(any(outcome.verdict in ("wrong", "broken") for outcome in outcomes))


if __name__ == "__main__":
    sys.exit(main())
