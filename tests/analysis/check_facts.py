"""Compare shape facts with what onnxruntime computes.

Every value of the main graph is made an output, and every value within the bodies of If, Loop and
Scan is recorded for each of their runs; then each fact is held against what came out: rank, dims
under the sizes of the run, dtype, known contents, and the number that all elements are.

As a script: ``python -m tests.analysis.check_facts PATH...``, where a path is a model, or a folder
of models. Inputs are read from ``test_data_set_*/input_*.pb`` beside a model, else made up.
"""

from __future__ import annotations

import argparse
import copy
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from graphopt import ir
from graphopt.analysis.shape_inference.shape_facts import ShapeFacts
from graphopt.analysis.symbolic import Bound, Dim, Symbol, bounds, evaluate, lone_atom, symbols

Feeds = dict[str, Any]
Ranges = dict[str, tuple[Bound, Bound]]


def facts_of(model: ir.Model, ranges: Ranges | None = None) -> ShapeFacts:
    """Facts of ``model`` on its own, without the services of a run."""
    return ShapeFacts(model, constant=ir.constant_of, version=ir.Scopes(model).version, ranges=ranges)


def read(proto: onnx.ModelProto) -> ir.Model:
    """``proto`` as a model; ``proto`` is not modified."""
    return ir.from_proto(copy.deepcopy(proto))


@dataclass
class Report:
    """The findings of a check.

    Attributes:
        wrong: facts that a run contradicts.
        checked: dims that were compared.
        unknown_rank: values of the main graph whose rank is unknown.
        values: values of the main graph that nodes produce.
        not_run: the reasons why onnxruntime did not run sets of inputs.
        failures: nodes on which a rule raised.
    """

    wrong: list[str] = field(default_factory=list)
    checked: int = 0
    unknown_rank: list[str] = field(default_factory=list)
    made_up: int = 0
    dims: int = 0
    values: int = 0
    not_run: list[str] = field(default_factory=list)
    failures: list[str] = field(default_factory=list)


def check(proto: onnx.ModelProto, feeds: Sequence[Feeds], ranges: Ranges | None = None) -> Report:
    """Check the facts of a model against a run for each of ``feeds``."""
    model = read(proto)
    facts = facts_of(model, ranges)
    facts.infer_all()
    report = Report()
    report.failures = [f"{node.op_type} {node.name}: {error!r}" for node, error in facts.failures]
    for value in _produced(model.graph):
        report.values += 1
        shape = facts.shape(value)
        if (shape is None and facts.dtype(value) is not None) or (
            shape is None and facts.type(value) is None
        ):
            report.unknown_rank.append(value.name or "")
        for dim in shape or ():
            report.dims += 1
            report.made_up += bool(not isinstance(dim, int) and dim.birth)
    if not feeds:
        return report
    probes = _Probes(model, facts)
    session = _session(probes.proto, report)
    for feed in feeds if session is not None else ():
        try:
            results = session.run(probes.wanted, feed)
        except Exception as error:  # onnxruntime raises classes of its own
            report.not_run.append(str(error))
            continue
        named = {**feed, **dict(zip(probes.wanted, results, strict=True))}
        if _reduces_nothing(model, named):
            report.not_run.append("onnxruntime does not reduce an empty tensor")
            continue
        probes.compare(report, named)
    return report


def _reduces_nothing(model: ir.Model, results: Mapping[str, Any]) -> bool:
    """Whether the run shows a defect of onnxruntime: a reduction returns its empty input unchanged."""
    for node in model.graph:
        if node.op_type.startswith(("Reduce", "Arg")) and node.inputs and node.inputs[0] is not None:
            data = results.get(node.inputs[0].name or "")
            if isinstance(data, np.ndarray) and data.size == 0:
                return True
    return False


def _session(proto: onnx.ModelProto, report: Report) -> Any:
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.log_severity_level = 4
    options.intra_op_num_threads = 1
    try:
        return onnxruntime.InferenceSession(
            proto.SerializeToString(), options, providers=["CPUExecutionProvider"]
        )
    except Exception as error:  # as above
        report.not_run.append(str(error))
        return None


def _produced(graph: ir.Graph) -> Iterator[ir.Value]:
    for node in graph:
        yield from (value for value in node.outputs if value.name)


class _Probes:
    """A copy of a model that also returns the values to compare.

    A body's values can't be outputs of the model. Each body gives one more result, a vector of
    *records*: for each of its tensors the rank, the dims and, where contents are known, the
    elements; for each node with bodies the records of all their runs, with their length in front.
    """

    def __init__(self, model: ir.Model, facts: ShapeFacts) -> None:
        self.model = model
        self.facts = facts
        self.proto = ir.to_proto(model)
        self._made = 0
        graph = self.proto.graph
        present = {output.name for output in graph.output}
        self.layouts: dict[str, _NodeLayout] = {}
        by_output = _nodes_by_output(model.graph)
        for node in list(graph.node):
            layout = self._lift(graph, node, by_output.get(_first_output(node)))
            if layout is not None:
                self.layouts[layout.record] = layout
                graph.output.append(onnx.ValueInfoProto(name=layout.record))
        for value in _produced(model.graph):
            # a value of unknown type is still given out: its fact claims nothing that could be wrong
            if value.name not in present and facts.type(value) is not None:
                graph.output.append(onnx.ValueInfoProto(name=value.name))
        self.wanted = [output.name for output in graph.output]

    # building

    def _name(self) -> str:
        self._made += 1
        return f"probe {self._made}"

    def _emit(self, graph: onnx.GraphProto, op_type: str, inputs: Sequence[str], **attributes: Any) -> str:
        name = self._name()
        graph.node.append(helper.make_node(op_type, inputs, [name], **attributes))
        return name

    def _number(self, graph: onnx.GraphProto, *numbers: int) -> str:
        tensor = helper.make_tensor("", TensorProto.INT64, [len(numbers)], numbers)
        return self._emit(graph, "Constant", [], value=tensor)

    def _lift(
        self, graph: onnx.GraphProto, node: onnx.NodeProto, inner: ir.Node | None
    ) -> _NodeLayout | None:
        """Make a node with bodies return their records; appends the required nodes to ``graph``."""
        if inner is None or node.domain or node.op_type not in ("If", "Loop", "Scan"):
            return None
        bodies = {a.name: a.g for a in node.attribute if a.type == onnx.AttributeProto.GRAPH}
        layouts: list[_BodyLayout] = []
        tails: list[tuple[onnx.GraphProto, str]] = []
        for tag, name in enumerate(sorted(bodies)):
            body = bodies[name]
            layout = self._record(body, inner.attributes[name].value)
            layouts.append(layout)
            if node.op_type == "If":
                layout.record = self._emit(body, "Concat", [self._number(body, tag), layout.record], axis=0)
            tails.append((body, layout.record))
        result = self._name()
        carried = len(node.input) - 2
        if node.op_type == "Loop":
            body, record = tails[0]
            before, after = self._name(), ""
            after = self._emit(body, "Concat", [before, record], axis=0)
            vector = helper.make_tensor_value_info(before, TensorProto.INT64, [None])
            body.input.append(vector)
            body.output.insert(carried + 1, onnx.ValueInfoProto(name=after))
            body.output[carried + 1].type.CopyFrom(vector.type)
            position = list(graph.node).index(node)
            empty = helper.make_node(
                "Constant", [], [self._name()], value=helper.make_tensor("", TensorProto.INT64, [0], [])
            )
            graph.node.insert(position, empty)
            node = graph.node[position + 1]
            node.input.append(empty.output[0])
            outputs = list(node.output) + [self._name() for _ in range(carried - len(node.output))]
            outputs.insert(carried, result)
            del node.output[:]
            node.output.extend(outputs)
        else:
            for body, record in tails:
                body.output.append(helper.make_tensor_value_info(record, TensorProto.INT64, [None]))
            count = len(tails[0][0].output) - 1
            node.output.extend(self._name() for _ in range(count - len(node.output)))
            node.output.append(result)
            for attribute in node.attribute:
                if attribute.name in ("scan_output_axes", "scan_output_directions"):
                    attribute.ints.append(0)
        flat = self._emit(graph, "Reshape", [result, self._number(graph, -1)])
        length = self._emit(graph, "Shape", [flat])
        return _NodeLayout(self._emit(graph, "Concat", [length, flat], axis=0), node.op_type, layouts)

    def _record(self, body: onnx.GraphProto, graph: ir.Graph) -> _BodyLayout:
        """Make ``body`` compute the record of one run; its name is in the layout."""
        by_output = _nodes_by_output(graph)
        parts: list[str] = []
        items: list[ir.Value | _NodeLayout] = []
        for node in list(body.node):
            layout = self._lift(body, node, by_output.get(_first_output(node)))
            if layout is not None:
                parts.append(layout.record)
                items.append(layout)
        for value in (*graph.inputs, *_produced(graph)):
            if not value.name or self.facts.dtype(value) is None:
                continue
            dims = self._emit(body, "Shape", [value.name])
            parts += [self._emit(body, "Shape", [dims]), dims]
            if self.facts.known_ints(value) is not None:
                cast = self._emit(body, "Cast", [value.name], to=TensorProto.INT64)
                flat = self._emit(body, "Reshape", [cast, self._number(body, -1)])
                parts += [self._emit(body, "Shape", [flat]), flat]
            items.append(value)
        record = self._emit(body, "Concat", parts, axis=0) if parts else self._number(body)
        return _BodyLayout(record, items)

    # comparing

    def compare(self, report: Report, results: Mapping[str, Any]) -> None:
        sizes: dict[str, int] = {}
        for value in self.model.graph.inputs:
            if value.name in results:
                self._compare_array(report, value, results[value.name], sizes)
        for value in _produced(self.model.graph):
            if value.name in results:
                self._compare_array(report, value, results[value.name], sizes)
        for name, layout in self.layouts.items():
            self._compare_node(report, layout, _Reader(results[name]), sizes)

    def _compare_array(self, report: Report, value: ir.Value, array: Any, sizes: dict[str, int]) -> None:
        if not isinstance(array, np.ndarray):
            kind = self.facts.type(value)
            sparse = hasattr(array, "dense_shape")  # as onnxruntime gives out a sparse constant
            if isinstance(kind, ir.TensorType) and array is not None and not sparse:
                report.wrong.append(f"{value.name}: {kind} is a {type(array).__name__}")
            return
        dtype = self.facts.dtype(value)
        actual = _dtype_of(array)
        if dtype is not None and dtype.name.startswith("FLOAT8"):
            actual = None  # onnxruntime hands these over as bytes
        if dtype is not None and actual is not None and dtype != actual:
            report.wrong.append(f"{value.name}: dtype {dtype} is {actual}")
        fill = self.facts.fill(value)
        if fill is not None and any(one.tobytes() != fill.tobytes() for one in array.reshape(-1)):
            report.wrong.append(f"{value.name}: not {fill!r} everywhere, but {array.reshape(-1)[:4]}")
        elements = array.reshape(-1).tolist() if self.facts.known_ints(value) is not None else None
        self._compare_value(report, value, array.shape, elements, sizes)

    def _compare_value(
        self,
        report: Report,
        value: ir.Value,
        dims: Sequence[int],
        elements: Sequence[int] | None,
        sizes: dict[str, int],
    ) -> None:
        shape = self.facts.shape(value)
        if shape is None:
            return
        if len(shape) != len(dims):
            report.wrong.append(f"{value.name}: rank {len(shape)} is {len(dims)}")
            return
        known = self.facts.known_ints(value)
        pairs = list(zip(shape, dims, strict=True))
        if known is not None and elements is not None:
            if len(known) != len(elements):
                report.wrong.append(f"{value.name}: {len(known)} elements are {len(elements)}")
                return
            pairs += [(dim, int(element)) for dim, element in zip(known, elements, strict=True)]
        for dim, actual in pairs:
            problem = _problem(dim, actual, sizes, report)
            if problem:
                producer = value.producer()
                by = f" of {producer.op_type}" if producer is not None else ""
                report.wrong.append(
                    f"{value.name}{by}: {problem} in {[str(d) for d in shape]} = {list(dims)}"
                )

    def _compare_node(
        self, report: Report, layout: _NodeLayout, reader: _Reader, sizes: dict[str, int]
    ) -> None:
        end = reader.number() + reader.position
        while reader.position < end:
            tag = reader.number() if layout.op_type == "If" else 0
            local = dict(sizes)  # the size of a symbol may change from run to run
            for item in layout.bodies[tag].items:
                if isinstance(item, _NodeLayout):
                    self._compare_node(report, item, reader, local)
                    continue
                dims = reader.numbers(reader.number())
                elements = None
                if self.facts.known_ints(item) is not None:
                    elements = reader.numbers(reader.number())
                self._compare_value(report, item, dims, elements, local)


@dataclass
class _BodyLayout:
    record: str
    items: list[ir.Value | _NodeLayout]


@dataclass
class _NodeLayout:
    record: str
    op_type: str
    bodies: list[_BodyLayout]


class _Reader:
    def __init__(self, record: np.ndarray) -> None:
        self._record = record.reshape(-1).tolist()
        self.position = 0

    def number(self) -> int:
        self.position += 1
        return self._record[self.position - 1]

    def numbers(self, count: int) -> list[int]:
        return [self.number() for _ in range(count)]


def _problem(dim: Dim, actual: int, sizes: dict[str, int], report: Report) -> str | None:
    if isinstance(dim, int):
        report.checked += 1
        return None if dim == actual else f"{dim} is {actual}"
    symbol = lone_atom(dim)
    if isinstance(symbol, Symbol) and symbol.name not in sizes:
        sizes[symbol.name] = actual
        return None if symbol.lo <= actual <= symbol.hi else f"{dim} is {actual}, outside of its range"
    if any(name not in sizes for name in symbols(dim)):
        return None
    report.checked += 1
    computed = evaluate(dim, sizes)
    lo, hi = bounds(dim)
    if computed is not None and computed != actual:
        return f"{dim} is {actual}, not {computed}"
    return None if lo <= actual <= hi else f"{dim} is {actual}, outside of [{lo}, {hi}]"


def _dtype_of(array: np.ndarray) -> ir.DataType | None:
    if array.dtype == object or array.dtype.kind in "US":
        return ir.DataType.STRING
    try:
        return ir.DataType.from_numpy(array.dtype)
    except (TypeError, ValueError):
        return None


def _nodes_by_output(graph: ir.Graph) -> dict[str, ir.Node]:
    return {value.name: node for node in graph for value in node.outputs if value.name}


def _first_output(node: onnx.NodeProto) -> str:
    return next((name for name in node.output if name), "")


# models and inputs


def with_symbols(proto: onnx.ModelProto) -> onnx.ModelProto:
    """A copy in which every dim of every input is a distinct symbol, without other declarations."""
    proto = copy.deepcopy(proto)
    constants = {tensor.name for tensor in proto.graph.initializer}
    for value in proto.graph.input:
        if value.name not in constants and value.type.HasField("tensor_type"):
            for index, dim in enumerate(value.type.tensor_type.shape.dim):
                dim.Clear()
                dim.dim_param = f"{value.name}_{index}"
    for value in proto.graph.output:
        if value.type.HasField("tensor_type"):
            value.type.tensor_type.ClearField("shape")
    del proto.graph.value_info[:]
    return proto


def with_constants(proto: onnx.ModelProto, feeds: Feeds, limit: int = 64) -> tuple[onnx.ModelProto, Feeds]:
    """A copy in which small integer inputs are initializers, and the feeds of the remaining inputs."""
    proto = copy.deepcopy(proto)
    left = dict(feeds)
    names = {output.name for output in proto.graph.output}
    for value in list(proto.graph.input):
        array = left.get(value.name)
        if isinstance(array, np.ndarray) and array.dtype.kind in "iub" and array.size <= limit:
            if value.name in names:
                continue
            proto.graph.input.remove(value)
            proto.graph.initializer.append(numpy_helper.from_array(array, value.name))
            del left[value.name]
    return proto, left


def made_up_feeds(proto: onnx.ModelProto, sizes: Mapping[str, int], default: int = 2) -> Feeds:
    """Inputs for a model: ``sizes`` by name of the symbol."""
    random = np.random.default_rng(0)
    constants = {tensor.name for tensor in proto.graph.initializer}
    feeds: Feeds = {}
    for value in proto.graph.input:
        if value.name in constants:
            continue
        tensor = value.type.tensor_type
        dims = [dim.dim_value or sizes.get(dim.dim_param, default) for dim in tensor.shape.dim]
        dtype = helper.tensor_dtype_to_np_dtype(tensor.elem_type)
        if tensor.elem_type == TensorProto.STRING:
            feeds[value.name] = np.full(dims, "text", dtype=object)
        elif dtype.kind == "f":
            feeds[value.name] = random.normal(size=dims).astype(dtype)
        else:
            feeds[value.name] = random.integers(0, 2, size=dims).astype(dtype)
    return feeds


def stored_feeds(folder: Path, proto: onnx.ModelProto) -> list[Feeds]:
    """The inputs in ``test_data_set_*`` beside a model."""
    constants = {tensor.name for tensor in proto.graph.initializer}
    inputs = [value for value in proto.graph.input if value.name not in constants]
    sets = []
    for data in sorted(folder.glob("test_data_set_*")):
        feeds: Feeds = {}
        for index, value in enumerate(inputs):
            path = data / f"input_{index}.pb"
            if path.exists() and value.type.HasField("tensor_type"):
                feeds[value.name] = numpy_helper.to_array(TensorProto.FromString(path.read_bytes()))
        sets.append(feeds)
    return sets


def main(arguments: Sequence[str] | None = None) -> int:
    """Check models from the command line; the status is 1 if a fact is wrong."""
    parser = argparse.ArgumentParser(description="Compare shape facts with what onnxruntime computes.")
    parser.add_argument("paths", nargs="+", type=Path, help="models, or folders of models")
    parser.add_argument("--symbolic", action="store_true", help="make every dim of the inputs a symbol")
    parser.add_argument("--constants", action="store_true", help="make small integer inputs constants")
    parser.add_argument("-v", "--verbose", action="store_true", help="also show what is unknown or not run")
    options = parser.parse_args(arguments)
    wrong = 0
    for path in options.paths:
        for file in sorted(path.rglob("*.onnx")) if path.is_dir() else [path]:
            proto = onnx.load(file)
            feeds = stored_feeds(file.parent, proto) or [made_up_feeds(proto, {})]
            if options.constants:
                proto, first = with_constants(proto, feeds[0])
                feeds = [first]
            if options.symbolic:
                proto = with_symbols(proto)
            report = check(proto, feeds)
            wrong += bool(report.wrong)
            for line in report.wrong + report.failures:
                print(f"{file}: {line}")
            if options.verbose:
                for line in [*report.not_run, *(f"unknown rank: {name}" for name in report.unknown_rank)]:
                    print(f"{file}: {line}")
    return int(wrong > 0)


if __name__ == "__main__":
    sys.exit(main())
