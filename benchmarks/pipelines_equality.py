"""Results of named pipelines and single passes against the original model, without dropping rewrites.

    python -m benchmarks.pipelines_equality DIR --only 'bert|yolo' --pipelines freezing,freeze
    python -m benchmarks.pipelines_equality DIR --form training --pipelines freezing
    python -m benchmarks.pipelines_equality DIR --form joint --pipelines training

Each model is optimized by each pipeline, and verified as `graphopt optimize` does: with and without
onnxruntime's optimizations, on generated inputs. `--form training` optimizes a model in training mode
instead: it has a Dropout behind each activation, BatchNormalization on the statistics of the batch, and
overridable initializers. Its frozen form is compared with the original. `--form joint` optimizes the joint
graph of the gradients with respect to parameters; models without gradients are skipped.

The exit status is 1 if a result differs, or a pipeline fails.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np

import graphopt
from benchmarks import doc_tables, measured_models
from graphopt import config, ir
from graphopt.autodiff import joint_graph
from graphopt.errors import GraphoptError
from graphopt.verification.verdict import Verdict

#: Pipelines of Inductor, and the passes freeze and pad-mm; pad-mm without an estimate of its gain.
PIPELINES = (
    *("pre-grad", "joint", "post-grad", "inner", "inference", "training", "freezing", "ahead"),
    *("freeze", "pad-mm{always}"),
)
_FLOATS = (ir.DataType.FLOAT, ir.DataType.DOUBLE)
#: Operators with a Dropout behind them in the training form.
_ACTIVATIONS = ("Relu", "Gelu", "Softmax", "Sigmoid", "Tanh", "LayerNormalization", "HardSwish")
#: The first opset versions in which Dropout and BatchNormalization have ``training_mode``. Before, further
#: outputs of BatchNormalization select training mode.
_DROPOUT, _BATCHNORM = 12, 14


@dataclass(frozen=True)
class Comparison:
    """The result of a pipeline on a model.

    Attributes:
        outcome: ``bits`` for identical outputs, ``rounding``, ``loads`` if the original runs on no generated
            inputs, or the error.
        before, after: numbers of nodes.
        comparisons: the number of compared runs.
        changed: the number of runs of passes that changed the model.
        notes: remarks of passes.
    """

    model: str
    pipeline: str
    outcome: str
    before: int = 0
    after: int = 0
    comparisons: int = 0
    changed: int = 0
    notes: tuple[str, ...] = ()

    @property
    def ok(self) -> bool:
        """Whether no difference was found."""
        return self.outcome in ("bits", "rounding", "loads")


def training_form(model: ir.Model) -> ir.Model:
    """A copy of ``model`` in training mode; its frozen form computes the same outputs."""
    made = graphopt.api.copy(model)
    graph, edit = made.graph, ir.Editor(made)
    version = ir.standard_version(graph.opset_imports)
    for node in list(graph):
        if node.domain:
            continue
        if version >= 7 and node.op_type == "BatchNormalization" and len(node.outputs) == 1:
            edit.set_attribute(node, "training_mode", 1 if version >= _BATCHNORM else None)
            for index in (1, 2) if version >= _BATCHNORM else (1, 2, 3, 4):
                edit.add_node_output(node, index)
        elif version >= _DROPOUT and node.op_type in _ACTIVATIONS:
            arguments = [
                edit.constant(graph, np.array(0.5, np.float32), "ratio"),
                edit.constant(graph, np.array(True), "training"),
            ]
            drop = edit.make_node("Dropout", [node.outputs[0], *arguments], name="drop")
            edit.interpose(node.outputs[0], drop)
    for value in graph.initializers.values():
        if made.ir_version >= 4 and not value.is_graph_input() and value.dtype in _FLOATS:
            graph.inputs.append(value)
    return made


def joint_form(model: ir.Model) -> ir.Model:
    """The joint graph of all outputs of floats with respect to the parameters.

    Raises:
        GraphoptError: an output has no gradient, or there is none.
    """
    outputs = [value.name or "" for value in model.graph.outputs if value.dtype in _FLOATS]
    return joint_graph.differentiate(model, outputs, "params", optimize=False).model


#: By form: the model to optimize, and whether its result is compared with the original.
FORMS: dict[str, tuple[Callable[[ir.Model], ir.Model], bool]] = {
    "original": (lambda model: model, False),
    "training": (training_form, True),
    "joint": (joint_form, False),
}


def compare(name: str, model: ir.Model, pipeline: str, reference: ir.Model | None = None) -> Comparison:
    """The result of ``pipeline`` on ``model``, compared with ``reference``, by default ``model`` itself."""
    try:
        with config.patch(cache=False):
            report = graphopt.optimize(
                model, pipeline=pipeline, device="cpu", strict=True, reference=reference
            ).report
    except GraphoptError as error:
        return Comparison(name, pipeline, f"{type(error).__name__}: {error}")
    verdict = report.verdict
    assert verdict is not None
    return Comparison(
        name,
        pipeline,
        _outcome(verdict),
        report.original.nodes,
        report.optimized.nodes,
        len(verdict.rows),
        sum(bool(record.changes) for record in report.passes),
        tuple(report.notes()),
    )


def _outcome(verdict: Verdict) -> str:
    if verdict.unverifiable is not None:
        return "loads"
    return "bits" if all(row.identical for row in verdict.rows) else "rounding"


def table(found: Sequence[Comparison]) -> str:
    """A row per pipeline."""
    rows = []
    for pipeline in dict.fromkeys(one.pipeline for one in found):
        ones = [one for one in found if one.pipeline == pipeline]
        counts = [sum(one.outcome == outcome for one in ones) for outcome in ("bits", "rounding", "loads")]
        changed = sum(one.changed > 0 for one in ones)
        total = sum(one.comparisons for one in ones)
        failed = sum(not one.ok for one in ones)
        rows.append([f"`{pipeline}`", len(ones), changed, *counts, failed, f"{total:,}"])
    header = ["pipeline", "models", "changed", "identical", "rounding", "only loaded", "different", "runs"]
    return doc_tables.markdown_table(header, rows)


def _failures(found: Sequence[Comparison]) -> Iterator[str]:
    return (f"{one.model}, {one.pipeline}: {one.outcome}" for one in found if not one.ok)


def main() -> int:
    parser = measured_models.arguments(__doc__)
    parser.add_argument(
        "--pipelines", default=",".join(PIPELINES), metavar="A,B", help="pipelines (default: all)"
    )
    parser.add_argument("--form", choices=list(FORMS), default="original", help="the models to optimize")
    options = parser.parse_args()
    pipelines = re.findall(r"[^,{]+(?:\{[^}]*\})?", options.pipelines)
    form, has_reference = FORMS[options.form]
    found = []
    with TemporaryDirectory() as scratch:
        for case in measured_models.progress(measured_models.cases(options, Path(scratch))):
            original = graphopt.api.load_model(case.path)
            try:
                model = form(original)
            except GraphoptError as error:
                print(f"  skipped: {error}", file=sys.stderr)
                continue
            for pipeline in pipelines:
                one = compare(case.name, model, pipeline, original if has_reference else None)
                text = f"  {one.pipeline}: {one.outcome}, {one.before} → {one.after}"
                print(text, file=sys.stderr, flush=True)
                found.append(one)
    results = {"versions": doc_tables.versions(sys.executable), "results": [asdict(one) for one in found]}
    doc_tables.publish(options, "pipelines-equality", table(found), results)
    print("\n".join(_failures(found)), file=sys.stderr)
    return int(any(not one.ok for one in found))


if __name__ == "__main__":
    sys.exit(main())
