"""Template kernels of random graphs, run alone against the stub of the runtime.

The stub allocates each tensor separately and runs chunks in reverse order, so that sanitizers report accesses
outside of tensors, and chunks that depend on each other give wrong results.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import onnx
from onnx import numpy_helper

from graphopt.errors import RuntimeFailure
from graphopt.fusion.template_kernel import NativeKernel, TemplateKernel
from graphopt.ops.graphopt_operators import NATIVE_DOMAIN
from graphopt.ort import session
from tests.fusion.backends.c.harness import Unit
from tests.fuzz.products.comparison import mismatch
from tests.fuzz.products.examination import example
from tests.fuzz.products.families import generate
from tests.fuzz.products.product_graph import CASES, Array, ProductGraph

#: Number of calls with wrong shapes for each call with right ones.
_WRONG = 3


@dataclass(frozen=True)
class Call:
    """The operands of a kernel in a model, and the results of its nodes in onnxruntime."""

    kernel: TemplateKernel
    operands: list[Array]
    results: list[Array]


def calls(
    model: bytes, kernels: Sequence[NativeKernel], feeds: Iterable[Mapping[str, Array]]
) -> Iterator[list[Call]]:
    """The calls of template kernels in the main graph of ``model`` for each of the inputs that onnxruntime accepts."""
    templates = {kernel.name: kernel for kernel in kernels if isinstance(kernel, TemplateKernel)}
    proto = onnx.ModelProto.FromString(model)
    nodes = [node for node in proto.graph.node if node.domain == NATIVE_DOMAIN and node.op_type in templates]
    weights = {weight.name: numpy_helper.to_array(weight) for weight in proto.graph.initializer}
    known = {value.name for value in (*proto.graph.input, *proto.graph.output)} | weights.keys()
    for name in dict.fromkeys(name for node in nodes for name in (*node.input, *node.output) if name):
        if name not in known:
            proto.graph.output.append(onnx.ValueInfoProto(name=name))
    runner = session.create(proto.SerializeToString(), optimizations="off", threads=1)
    names = [value.name for value in runner.get_outputs()]
    for given in feeds:
        try:
            outputs = session.run(runner, dict(given))
        except RuntimeFailure:
            yield []
            continue
        values = {**weights, **given, **dict(zip(names, map(np.asarray, outputs), strict=True))}
        yield [
            Call(
                templates[node.op_type],
                [values[name] for name in node.input if name],
                [values[name] for name in node.output if name],
            )
            for node in nodes
        ]


@dataclass(frozen=True)
class _RandomCall:
    graph: ProductGraph
    case: int
    call: Call

    def check(self, results: Sequence[Array]) -> None:
        """Compare results for inputs without special values with those of onnxruntime."""
        if self.graph.kind(self.case) != "normal":
            return
        for number, (got, expected) in enumerate(zip(results, self.call.results, strict=True)):
            fault = mismatch(got, [expected], [expected], self.graph.tolerance())
            where = f"seed {self.graph.seed}, case {self.case}: {self.call.kernel.name}, result {number}"
            assert fault is None, f"{where}: {fault}"


def _random_calls(seed: int) -> Iterator[_RandomCall]:
    graph = generate(seed, has_bodies=False)
    made = example(graph)
    if made is not None:
        feeds = [graph.feeds(case) for case in range(CASES)]
        for case, found in enumerate(calls(made.grouped, made.kernels, feeds)):
            yield from (_RandomCall(graph, case, call) for call in found)


def check(seeds: Sequence[int], level: int, folder: Path, flags: tuple[str, ...] = ()) -> None:
    """Run the kernels of the graphs of ``seeds`` with constant and variable operands, right and wrong shapes.

    Raises:
        AssertionError: a result is wrong, or memory beside a tensor was written.
    """
    found = [each for seed in seeds for each in _random_calls(seed)]
    kernels = list({each.call.kernel.name: each.call.kernel for each in found}.values())
    unit = Unit(kernels, folder, level, flags)
    for each in found:
        index = kernels.index(each.call.kernel)
        for constant in (False, True):
            each.check(unit.run(index, each.call.operands, constant=constant))
        random = np.random.default_rng([each.graph.seed, each.case])
        for _ in range(_WRONG):
            _run_wrong_shapes(unit, index, each.call.operands, random)


def _run_wrong_shapes(unit: Unit, index: int, operands: list[Array], random: np.random.Generator) -> None:
    """Change one dim of an operand: the kernel fails with a message, or computes another result."""
    operands, place = list(operands), int(random.integers(len(operands)))
    shape = list(operands[place].shape)
    if not shape:
        return
    axis = int(random.integers(len(shape)))
    size = shape[axis]
    shape[axis] = int(random.choice([max(size - 1, 0), size + 1, 1, 0, 2 * size]))
    operands[place] = np.resize(operands[place], shape).astype(operands[place].dtype)
    try:
        unit.run(index, operands, constant=bool(random.integers(2)))
    except RuntimeError as failure:
        assert str(failure), "failures have a message"
