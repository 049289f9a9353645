"""Random graphs with products, run without and with their kernels."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import numpy as np
import onnx

from graphopt import ir
from graphopt.context import context_for
from graphopt.errors import RuntimeFailure
from graphopt.fusion.group_functions import groups_of, kernels_of
from graphopt.fusion.operator_table import qualified_name
from graphopt.fusion.template_kernel import NativeKernel, TemplateKernel
from graphopt.fusion.template_table import has_template
from graphopt.ort import session
from graphopt.ort.session_options import SessionChoice
from graphopt.passes.pipelines import make_pipeline
from tests.fuzz.kernels.batches import library
from tests.fuzz.products.comparison import RUNS, disturbed, mismatch
from tests.fuzz.products.exact_outputs import ExactOutputs
from tests.fuzz.products.families import generate
from tests.fuzz.products.product_graph import CASES, Array, ProductGraph

#: Groups of all products, whether they are faster or not.
PIPELINE = "fuse-groups{kernels=all}"
#: Small chunks of work, so that small products have several.
SMALL_CHUNKS = ("-DGO_CHUNK=64", "-DGO_ENOUGH=1")


@dataclass
class Findings:
    """The findings of a batch.

    Attributes:
        faults: mismatches, each with the seed of its graph.
        graphs: number of graphs that onnxruntime accepts.
        compared: number of results that were compared.
        templates: number of kernels of each template.
        operators: number of nodes of each operator with a template, in kernels that ran.
    """

    faults: list[str] = field(default_factory=list)
    graphs: int = 0
    compared: int = 0
    templates: Counter[str] = field(default_factory=Counter)
    operators: Counter[str] = field(default_factory=Counter)


@dataclass(frozen=True)
class Example:
    """A graph, its session without kernels, and the same model with groups.

    Attributes:
        operators: number of nodes of each operator with a template in groups with a kernel.
    """

    graph: ProductGraph
    text: bytes
    plain: session.InferenceSession
    grouped: bytes
    kernels: list[NativeKernel]
    operators: Counter[str]


def example(graph: ProductGraph) -> Example | None:
    """The example of ``graph``; ``None`` if onnxruntime rejects it."""
    text = graph.model().SerializeToString()
    try:
        plain = session.create(text, optimizations="off", threads=1)
    except RuntimeFailure:
        return None
    model = ir.from_proto(onnx.ModelProto.FromString(text))
    with context_for(model) as cx:
        make_pipeline(PIPELINE).run(model, cx)
    operators = Counter(
        qualified_name(node)
        for group in groups_of(model)
        if isinstance(group.kernel, TemplateKernel)
        for node in group.function.graph
        if has_template(node)
    )
    return Example(graph, text, plain, ir.to_bytes(model), list(kernels_of(model)), operators)


def examine(
    seeds: Sequence[int], folder: Path, level: int, threads: tuple[int, ...], more: tuple[str, ...] = ()
) -> Findings:
    """Compile the kernels of the graphs of ``seeds`` for one CPU level, run them, and compare.

    Args:
        threads: numbers of threads, whose results have to be equal bit by bit.
        more: further arguments of the compiler.
    """
    findings, examples = Findings(), []
    for seed in seeds:
        made = example(generate(seed))
        if made is not None and made.kernels:
            examples.append(made)
    kernels = {kernel.name: kernel for made in examples for kernel in made.kernels}
    # A unit with kernels of one template includes few headers.
    ordered = sorted(kernels.values(), key=lambda kernel: getattr(kernel, "template", ""))
    path = str(library(ordered, folder, (level,), more=more))
    for made in examples:
        findings.graphs += 1
        for kernel in made.kernels:
            if isinstance(kernel, TemplateKernel):
                findings.templates[kernel.template] += 1
        choice = SessionChoice(libraries=(path,), cpu_level=level)
        try:
            if _compare(made, choice, threads, findings):
                findings.operators += made.operators
        except RuntimeFailure as failure:
            findings.faults.append(f"seed {made.graph.seed}: {failure}")
    return findings


def _compare(made: Example, choice: SessionChoice, threads: tuple[int, ...], findings: Findings) -> bool:
    """Compare all cases, and return whether onnxruntime accepts one."""
    optimized = session.create(made.text, threads=1)
    without = session.create(made.grouped, threads=1)
    native = [session.create(made.grouped, threads=count, choice=choice) for count in threads]
    compared = findings.compared
    for case in range(CASES):
        feeds = made.graph.feeds(case)
        feeds = {value.name: feeds[value.name] for value in made.plain.get_inputs()}
        try:
            expected = [session.run(made.plain, feeds), session.run(optimized, feeds)]
            noisy = [session.run(made.plain, disturbed(feeds, turn)) for turn in range(RUNS)]
        except RuntimeFailure:
            continue  # onnxruntime rejects these sizes
        results = [session.run(without, feeds), *(session.run(each, feeds) for each in native)]
        title = f"seed {made.graph.seed}, case {case} ({made.graph.kind(case)})"
        exact = ExactOutputs(made.text, feeds)
        for place, name in enumerate(made.graph.outputs):
            wanted, spread = ([np.asarray(each[place]) for each in runs] for runs in (expected, noisy))
            found = [np.asarray(each[place]) for each in results]
            tolerance = made.graph.tolerance(name)
            findings.compared += 1
            for got, where in zip(found, (", without library", ""), strict=False):
                fault = mismatch(got, wanted, spread, tolerance, partial(exact.output, place, got.shape))
                if fault is not None:
                    findings.faults.append(f"{title}{where}: {name}: {fault}")
            for count, other in zip(threads[1:], found[2:], strict=True):
                if not _same(found[1], other):
                    findings.faults.append(f"{title}: {name}: other bits with {count} threads than with 1")
    return findings.compared > compared


def _same(a: Array, b: Array) -> bool:
    """Whether bits are equal, except for those of NaN."""
    return (
        a.shape == b.shape
        and np.array_equal(a, b, equal_nan=a.dtype.kind == "f")
        and np.array_equal(np.signbit(a[a == 0]), np.signbit(b[b == 0]))
    )
