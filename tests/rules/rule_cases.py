"""Cases for rewrite rules: reading, application of one rule, comparison of graphs, and of results.

A case is a text file::

    # rule: compose-transposes
    # opset: 13                      (default 18; or a complete <…> header before the graphs)
    # feed: i = np.array([0, 2])     (an input for which random numbers are invalid; may be repeated)
    # bind: N = 2, M = 4             (sizes of dims for which random sizes are invalid; may be repeated)
    # dialect: torchscript           (the exporter with this form: a cell of the table in docs/fusions.md)
    # near-miss: torchscript         (the same, with one condition violated; => unchanged)
    # pattern: attention, causal     (the row of that table; by default the rule's)
    # refused: it is no product      (a near miss: part of the reason of the refusal)
    # unmatched                      (a near miss: the rule's pattern does not match)
    # precise                        (without --fast-math, with which other cases run)
    # portable                       (only operators of the ONNX standard may be written)
    # device: cuda                   (the target device; the result is still verified on the CPU)
    # random                         (results differ from run to run: they are not compared)
    g (float[N, 4] x) => (float[N, 4] y) {
        a = Transpose <perm = [1, 0]> (x)
        y = Transpose <perm = [1, 0]> (a)
    }
    =>
    g (float[N, 4] x) => (float[N, 4] y) {
        y = Identity (x)
    }

or ``=> unchanged``, if the rule must not change the model. Without the signature, which must
not change anyway, the second graph may be given as ``{ … }`` or ``<weights> { … }``.
"""

from __future__ import annotations

import contextlib
import hashlib
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, cached_property
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import onnx
import onnx.numpy_helper
import onnx.parser
from onnx import AttributeProto, TensorProto

from graphopt import ir
from graphopt.api import context_for
from graphopt.context import Observer, Options, Refusal
from graphopt.cost import shipped
from graphopt.numerics import Numerics
from graphopt.ort import session
from graphopt.ort.devices import CPU, Device
from graphopt.passes.base import Pass
from graphopt.passes.pipeline import Pipeline
from graphopt.passes.pipelines import registry
from graphopt.process.child import Child
from graphopt.rewrite import Rule
from graphopt.rules import all_rules
from graphopt.transforms.fusion.fuse_builtin import FuseBuiltin
from graphopt.transforms.scalar.decompose import Decompose, decompositions
from graphopt.transforms.scalar.peephole import Peephole
from graphopt.transforms.scalar.views_to_reshape import ViewsToReshape
from graphopt.transforms.sequences.lower_sequences import LowerSequences

CASES = Path(__file__).parent / "cases"
Feeds = dict[str, np.ndarray]


@dataclass(frozen=True)
class Case:
    """One case file; ``after`` is None if the rule must not apply."""

    rule: str
    before: onnx.ModelProto
    after: onnx.ModelProto | None
    feeds: Feeds
    bindings: tuple[dict[str, int], ...]
    portable: bool = False
    device: Device = CPU
    numerics: Numerics = Numerics.APPROXIMATES
    refused: tuple[str, ...] = ()
    unmatched: bool = False


# Reading -------------------------------------------------------------------------------------


def case_files() -> list[Path]:
    return sorted(CASES.glob("*/*.txt"))


def rule_of(path: Path) -> str:
    """The rule that a case is about: its first line."""
    match = re.match(r"# rule: (\S+)\n", path.read_text())
    assert match, f"{path}: the first line must be '# rule: NAME'"
    return match[1]


def is_near_miss(path: Path) -> bool:
    return re.search(r"^=> unchanged$", path.read_text(), re.M) is not None


def is_random(path: Path) -> bool:
    """Whether the case declares that its results differ from run to run."""
    return _says(path.read_text(), "random")


def _says(text: str, word: str) -> bool:
    """Whether a line of the header is this word."""
    return re.search(rf"^# {word}$", text, re.M) is not None


def read_case(path: Path) -> Case:
    text = path.read_text()
    notes = re.findall(r"^# (\w+): (.*)$", text, re.M)
    opset = next((value for key, value in notes if key == "opset"), "18")
    header = f'<ir_version: 8, opset_import: ["" : {opset}]>'
    body = re.sub(r"^#.*\n", "", text, flags=re.M)
    before, after = re.split(r"^=>", body, maxsplit=1, flags=re.M)
    if before.lstrip().startswith("<"):
        header, before = re.match(r"\s*(<[^>]*>)(.*)", before, re.S).groups()  # type: ignore[union-attr]
    signature = re.match(r"\s*(\w+\s*\(.*?\)\s*=>\s*\(.*?\))", before, re.S)
    assert signature, f"{path}: no graph"
    feeds, bindings = {}, []
    for key, value in notes:
        if key == "feed":
            name, expression = value.split("=", 1)
            feeds[name.strip()] = np.asarray(eval(expression, {"np": np, "ml": ml_dtypes}))
        elif key == "bind":
            bindings.append(
                {name.strip(): int(size) for name, size in re.findall(r"(\w+)\s*=\s*(\d+)", value)}
            )
    if after.strip() == "unchanged":
        expected = None
    else:
        bare = after.lstrip().startswith(("<", "{"))
        expected = onnx.parser.parse_model(header + (signature[1] if bare else "") + after)
    model = onnx.parser.parse_model(header + before)
    told = dict(notes)
    return Case(
        told["rule"],
        model,
        expected,
        feeds,
        tuple(bindings),
        portable=_says(text, "portable"),
        device=Device("cuda") if told.get("device") == "cuda" else CPU,
        numerics=Numerics.REASSOCIATES if _says(text, "precise") else Numerics.APPROXIMATES,
        refused=tuple(value for key, value in notes if key == "refused"),
        unmatched=_says(text, "unmatched"),
    )


def rules_by_name() -> dict[str, Rule]:
    return {rule.name: rule for rule in all_rules()}


# Running a rule ------------------------------------------------------------------------------


class Refusals(Observer):
    """An observer that records refusals of rules."""

    def __init__(self) -> None:
        self.reasons: list[str] = []

    def refused(self, refusal: Refusal) -> None:
        self.reasons.append(f"{refusal.node}: {refusal.reason} ({refusal.value})")


_PASSES = (Peephole(), FuseBuiltin(), Decompose(tuple(decompositions())), LowerSequences(), ViewsToReshape())


def apply_rule(
    proto: onnx.ModelProto,
    rule: str,
    *,
    portable: bool = False,
    device: Device = CPU,
    numerics: Numerics = Numerics.APPROXIMATES,
) -> tuple[onnx.ModelProto, int, list[str]]:
    """``proto`` after the application of only ``rule``, the number of rewrites, and the refusals."""
    model, rewrites, reasons = _applied(proto, rule, portable=portable, device=device, numerics=numerics)
    return ir.to_proto(model), rewrites, reasons


def fused_in(case: Case) -> list[str]:
    """The fused operators that the rule writes for ``case``, with their domains."""
    model, _, _ = _applied(
        case.before, case.rule, portable=case.portable, device=case.device, numerics=case.numerics
    )
    nodes = [node for graph in ir.graphs_of(model) for node in graph if ir.is_fused(node)]
    return [f"{node.domain}.{node.op_type}" if node.domain else node.op_type for node in nodes]


def rewritten(case: Case, proto: onnx.ModelProto, device: Device) -> ir.Model:
    """``proto``, a variation of the model of ``case``, after the application of its rule for ``device``."""
    return _applied(proto, case.rule, portable=case.portable, device=device, numerics=case.numerics)[0]


def _applied(
    proto: onnx.ModelProto, rule: str, *, portable: bool, device: Device, numerics: Numerics
) -> tuple[ir.Model, int, list[str]]:
    model = ir.from_proto(onnx.ModelProto.FromString(proto.SerializeToString()))
    options = Options(
        numerics=numerics,
        only=frozenset({rule}),
        portable=portable,
        device=device,
        costs=shipped(device.kind),
    )
    refusals = Refusals()
    cx = context_for(model, options, observers=[refusals])
    passes: dict[str, Pass] = {pass_.name: pass_ for pass_ in _PASSES}
    passes[rules_by_name()[rule].pass_].run(model, cx)
    return model, cx.actions, refusals.reasons


def optimize(proto: onnx.ModelProto) -> onnx.ModelProto:
    """``proto`` after all that the presets do."""
    model = ir.from_proto(onnx.ModelProto.FromString(proto.SerializeToString()))
    Pipeline.parse("O3", registry()).run(model, context_for(model, observers=[Refusals()]))
    return ir.to_proto(model)


def inline(proto: onnx.ModelProto) -> onnx.ModelProto:
    """``proto`` with its functions inlined."""
    model = ir.from_proto(onnx.ModelProto.FromString(proto.SerializeToString()))
    Pipeline.parse("inline-functions", registry()).run(model, context_for(model))
    return ir.to_proto(model)


# Comparing graphs ----------------------------------------------------------------------------


def canonical(model: onnx.ModelProto) -> dict[str, Any]:
    """A canonical form of the model, independent of the names and order of nodes and inner values.

    Constants are represented by their contents, regardless of their position; unread constants are omitted.
    """
    functions = {f"{f.domain}::{f.name}": _Canonical({}).function(f) for f in model.functions}
    return {"graph": _Canonical({}).graph(model.graph), **functions}


class _Canonical:
    """Assigns each value of a graph and its enclosing graphs a key that describes its computation."""

    def __init__(self, outer: Mapping[str, str]) -> None:
        self.keys = dict(outer)
        self.nodes: list[str] = []

    def graph(self, graph: onnx.GraphProto) -> dict[str, Any]:
        defaults = {tensor.name: _tensor(tensor) for tensor in graph.initializer}
        self.keys.update(defaults)
        inputs = [f"{value.name}:{_type(value)}={defaults.get(value.name)}" for value in graph.input]
        self.keys.update({value.name: f"input {i}" for i, value in enumerate(graph.input)})
        self._walk(graph.node)
        outputs = [f"{value.name}:{_type(value)}={self.keys[value.name]}" for value in graph.output]
        return {"inputs": inputs, "nodes": sorted(self.nodes), "outputs": outputs}

    def body(self, graph: onnx.GraphProto) -> str:
        self.keys.update({tensor.name: _tensor(tensor) for tensor in graph.initializer})
        self.keys.update({value.name: f"body input {i}" for i, value in enumerate(graph.input)})
        self._walk(graph.node)
        return f"{len(graph.input)} {sorted(self.nodes)} {[self.keys[value.name] for value in graph.output]}"

    def function(self, function: onnx.FunctionProto) -> str:
        self.keys.update({name: f"input {i}" for i, name in enumerate(function.input)})
        self._walk(function.node)
        return f"{sorted(self.nodes)} {[self.keys[name] for name in function.output]}"

    def _walk(self, nodes: Sequence[onnx.NodeProto]) -> None:
        for node in nodes:
            if node.op_type == "Constant":
                self.keys[node.output[0]] = _constant(node)
                continue
            attributes = sorted(f"{a.name}={self._attribute(a)}" for a in node.attribute)
            inputs = [self.keys[name] if name else "" for name in node.input]
            while inputs and not inputs[-1]:
                inputs.pop()
            used = [index for index, name in enumerate(node.output) if name]
            text = f"{node.domain}.{node.op_type}({', '.join(inputs)}) {attributes} -> {used}"
            self.nodes.append(f"{node.op_type} {_digest(text)}")
            for index, name in enumerate(node.output):
                self.keys[name] = _digest(f"{text} {index}")

    def _attribute(self, attribute: onnx.AttributeProto) -> str:
        if attribute.ref_attr_name:
            return f"@{attribute.ref_attr_name}"
        if attribute.type == AttributeProto.GRAPH:
            return _Canonical(self.keys).body(attribute.g)
        if attribute.type == AttributeProto.TENSOR:
            return _tensor(attribute.t)
        return str(onnx.helper.get_attribute_value(attribute))


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def _type(value: onnx.ValueInfoProto) -> str:
    return str(value.type)


def _tensor(tensor: onnx.TensorProto) -> str:
    array = onnx.numpy_helper.to_array(tensor)
    contents = array.tolist() if array.dtype == object else array.tobytes()
    return f"{TensorProto.DataType.Name(tensor.data_type)}{list(tensor.dims)}{contents!r}"


def _constant(node: onnx.NodeProto) -> str:
    attribute = node.attribute[0]
    if attribute.ref_attr_name:
        return f"@{attribute.ref_attr_name}"
    value = onnx.helper.get_attribute_value(attribute)
    if isinstance(value, onnx.TensorProto):
        return _tensor(value)
    dtype = np.int64 if "int" in attribute.name else np.float32
    return _tensor(onnx.numpy_helper.from_array(np.array(value, dtype)))


def count_nodes(model: onnx.ModelProto) -> int:
    """Nodes of the main graph, constants not counted."""
    return sum(node.op_type != "Constant" for node in model.graph.node)


def is_defined(model: onnx.ModelProto) -> bool:
    """Whether onnx knows all operators of ai.onnx in the main graph: onnxruntime adds some of its own."""
    version = next((one.version for one in model.opset_import if one.domain in ("", "ai.onnx")), 0)
    return all(node.domain or _since().get(node.op_type, version + 1) <= version for node in model.graph.node)


def is_standard(model: onnx.ModelProto) -> bool:
    """Whether the ONNX standard defines all operators of the main graph."""
    return is_defined(model) and all(node.domain != "com.microsoft" for node in model.graph.node)


@cache
def _since() -> dict[str, int]:
    """The first opset of ai.onnx that has all its operators."""
    schemas = [one for one in onnx.defs.get_all_schemas_with_history() if one.domain == ""]
    found: dict[str, int] = {}
    for one in schemas:
        found[one.name] = min(one.since_version, found.get(one.name, one.since_version))
    return found


def show(model: onnx.ModelProto) -> str:
    return onnx.printer.to_text(model)


# Feeding -------------------------------------------------------------------------------------

_PRIMES = (2, 3, 5, 7, 11, 13, 17)
_FILLS = ("normal", "zero", "negative", "large", "special")


def bindings_of(case: Case) -> Iterator[dict[str, int]]:
    """Sizes for the model's symbols: those that the case names; a prime each, the other way round; 1; 2."""
    names = list(
        dict.fromkeys(
            dim.dim_param for value in case.before.graph.input for dim in _dims(value) if dim.dim_param
        )
    )
    yield from case.bindings
    if case.bindings:
        return
    yield dict(zip(names, _PRIMES, strict=False))
    if names:
        yield dict(zip(names, reversed(_PRIMES[: len(names) + 1]), strict=False))
        yield dict.fromkeys(names, 1)
        yield dict.fromkeys(names, 2)


def empty_bindings(case: Case) -> Iterator[dict[str, int]]:
    """Each symbol 0 in turn."""
    for sizes in bindings_of(case):
        for name in sizes:
            yield {**sizes, name: 0}
        return


def _dims(value: onnx.ValueInfoProto) -> Sequence[Any]:
    return value.type.tensor_type.shape.dim


def make_feeds(case: Case, sizes: Mapping[str, int], fill: str) -> Feeds:
    random = np.random.default_rng(7)
    constants = {tensor.name for tensor in case.before.graph.initializer}
    feeds = {}
    for value in case.before.graph.input:
        if value.name in constants:
            continue
        shape = [sizes[dim.dim_param] if dim.dim_param else max(dim.dim_value, 0) for dim in _dims(value)]
        dtype = onnx.helper.tensor_dtype_to_np_dtype(value.type.tensor_type.elem_type)
        given = case.feeds.get(value.name)
        feeds[value.name] = (
            _array(random, fill, shape, np.dtype(dtype)) if given is None else given.astype(dtype)
        )
    return feeds


def _array(random: np.random.Generator, fill: str, shape: list[int], dtype: np.dtype[Any]) -> np.ndarray:
    if dtype.kind == "O":
        return random.choice(np.array(["a", "b", ""], object), shape)
    if dtype.kind == "b":
        return random.random(shape) < 0.5
    if dtype.kind in "iu":
        info = np.iinfo(dtype)
        low, high = {"zero": (0, 1), "negative": (-9, 0), "normal": (-9, 9)}.get(fill, (info.min, info.max))
        return random.integers(max(low, info.min), min(high, info.max), shape, dtype, endpoint=fill != "zero")
    normal = random.standard_normal(shape)
    match fill:
        case "zero":
            normal = np.where(normal < 0, -0.0, 0.0)
        case "negative":
            normal = -np.abs(normal)
        case "large":
            normal *= 1e3
        case "special":
            normal = np.where(
                random.random(shape) < 0.3, random.choice([np.nan, np.inf, -np.inf, -0.0], shape), normal
            )
    return np.asarray(normal).astype(dtype)


# Judging -------------------------------------------------------------------------------------

#: Largest error relative to the largest element of an output, by numerics class.
_TOLERANCE = {np.float64: 1e-12, np.float32: 2e-6, np.float16: 5e-3, ml_dtypes.bfloat16: 5e-2}


def judge(case: Case, after: onnx.ModelProto, numerics: Numerics, child: Child) -> None:
    """Assert that ``after`` computes the same as the case's model, on all inputs with which the model runs.

    Default sessions compute something else where a rule is a workaround; the model is not run in one then.
    """
    ran = 0
    workaround = case.after is not None and any(
        rule.workaround for rule in all_rules() if rule.name == case.rule
    )
    for optimizations in ("off", "default"):
        models = [Runtime(case.before, "off" if workaround else optimizations), Runtime(after, optimizations)]
        for sizes in bindings_of(case):
            for fill in _FILLS if optimizations == "off" else _FILLS[:1]:
                feeds = make_feeds(case, sizes, fill)
                ran += _compare(
                    models, feeds, numerics, fill, f"{sizes}, {fill} numbers, optimizations {optimizations}"
                )
    assert ran, "the model itself ran with none of the bindings: add '# bind:' or '# feed:'"
    sizes = next(bindings_of(case))
    if is_standard(after):
        with contextlib.suppress(
            NotImplementedError
        ):  # not all operators of the standard are implemented there
            models = [Reference(model) for model in (case.before, after)]
            feeds = make_feeds(case, sizes, "normal")
            _compare(models, feeds, numerics, "normal", f"{sizes}, reference evaluator")
    for sizes in empty_bindings(case):
        feeds = make_feeds(case, sizes, "normal")
        original, candidate = (Isolated(model, child) for model in (case.before, after))
        if _same_shapes(original, candidate, feeds):
            _compare([original, candidate], feeds, numerics, "normal", f"{sizes}")
        else:  # onnxruntime reduces the shapes of empty tensors over some axes only
            assert _compare([Reference(case.before), candidate], feeds, numerics, "normal", f"{sizes}")


def _same_shapes(original: Any, candidate: Any, feeds: Feeds) -> bool:
    """Whether both return the same shapes, or the original does not run."""
    try:
        expected = original.run(feeds)
    except Exception:  # not a legal way to call the model
        return True
    return [array.shape for array in expected] == [array.shape for array in candidate.run(feeds)]


def _compare(models: Sequence[Any], feeds: Feeds, numerics: Numerics, fill: str, what: str) -> bool:
    """Whether the first model runs; then the second must, with equal results."""
    try:
        expected = models[0].run(feeds)
    except Exception:  # inputs that the verifier rejects are not valid for the model
        return False
    got = models[1].run(feeds)
    assert len(expected) == len(got)
    for a, b in zip(expected, got, strict=True):
        assert a.dtype == b.dtype and a.shape == b.shape, (
            f"{what}: {a.dtype}{a.shape} became {b.dtype}{b.shape}"
        )
        assert _agree(a, b, numerics, fill), f"{what}:\n{a}\nbecame\n{b}"
    return True


def _agree(a: np.ndarray, b: np.ndarray, numerics: Numerics, fill: str) -> bool:
    if a.dtype.kind in "OUSbiu":
        return bool(np.array_equal(a, b))
    x, y = a.astype(np.float64), b.astype(np.float64)
    if numerics == Numerics.EXACT:
        same = np.array_equal(x, y, equal_nan=True)
        return bool(same and np.array_equal(np.signbit(x[x == 0]), np.signbit(y[y == 0])))
    if fill == "special":
        return True  # infinities may meet in another order
    tolerance = _TOLERANCE[a.dtype.type] * (1 if numerics == Numerics.REASSOCIATES else 100)
    finite = np.isfinite(x)
    if not np.array_equal(finite, np.isfinite(y)):
        return False
    scale = float(np.max(np.abs(x[finite]), initial=1.0))
    return bool(np.all(np.abs(x[finite] - y[finite]) <= tolerance * scale))


class Runtime:
    """onnxruntime in this process."""

    def __init__(self, model: onnx.ModelProto, optimizations: Any) -> None:
        self._model, self._optimizations = model, optimizations

    @cached_property
    def _session(self) -> Any:
        return session.create(self._model.SerializeToString(), optimizations=self._optimizations, threads=1)

    def run(self, feeds: Feeds) -> list[np.ndarray]:
        return [np.asarray(result) for result in session.run(self._session, feeds)]


class Reference:
    """onnx's reference evaluator."""

    def __init__(self, model: onnx.ModelProto) -> None:
        self._model = model

    def run(self, feeds: Feeds) -> list[np.ndarray]:
        from onnx.reference import ReferenceEvaluator

        return [np.asarray(result) for result in ReferenceEvaluator(self._model).run(None, feeds)]


class Isolated:
    """onnxruntime in another process: empty tensors make some operators crash."""

    def __init__(self, model: onnx.ModelProto, child: Child) -> None:
        self._model, self._child = model.SerializeToString(), child

    def run(self, feeds: Feeds) -> list[np.ndarray]:
        return self._child.call(run_bytes, self._model, feeds)


def run_bytes(model: bytes, feeds: Feeds) -> list[np.ndarray]:
    """Run a serialized model once, optimizations off."""
    return [np.asarray(r) for r in session.run(session.create(model, optimizations="off", threads=1), feeds)]
