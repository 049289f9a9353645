"""Replaced weights of split models, compared with optimizing a model that has the new weights.

    python -m benchmarks.replace_weights                the samples
    python -m benchmarks.replace_weights MODELS         a folder of models
    python -m benchmarks.replace_weights MODELS -- O3   with another pipeline than O2

For each model: whether both results have the same operators, and the same outputs, bit by bit without
onnxruntime's optimizations; and the seconds of the update, and of optimizing without verification.
The exit status is 1 if an output differs.
"""

from __future__ import annotations

import sys
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import numpy as np

import graphopt
from benchmarks import measured_models
from graphopt import ir
from graphopt.errors import GraphoptError
from graphopt.parameters.constant_nodes_to_initializers import constants_to_initializers
from graphopt.util.text_tables import Table


def other_weights(model: ir.Model, names: Sequence[str]) -> dict[str, np.ndarray]:
    """Other contents for weights of ``model``: slightly larger, so that variances stay positive."""
    random = np.random.default_rng(0)
    found = {}
    for name in names:
        tensor = model.graph.initializers[name].const_value
        assert tensor is not None
        array = tensor.numpy()
        changed = array * (1 + 0.05 * random.random(array.shape)) + 1e-3 * random.random(array.shape)
        found[name] = changed.astype(array.dtype)
    return found


def operators(model: ir.Model) -> Counter[str]:
    """The operators of a model, bodies included."""
    return Counter(node.op_type for node in ir.walk_nodes(model.graph) if node.op_type != "Constant")


def measure(path: Path, pipeline: str) -> tuple[list[str], bool]:
    """The row of a model, and whether outputs have the same bits."""
    compiler = graphopt.Compiler(pipeline=pipeline, verify=False)
    source = ir.load(path)
    constants_to_initializers(source, [], weights=True)
    models, _ = compiler.split_constants(source)
    weights = other_weights(source, models.weights)
    begin = time.perf_counter()
    updated = compiler.update_weights(models, weights).main
    update = time.perf_counter() - begin
    changed, _ = compiler.unlift_parameters(source, weights)
    begin = time.perf_counter()
    optimized = compiler.optimize(changed).model
    optimize = time.perf_counter() - begin
    feeds = compiler.try_out(changed).feeds
    runs = [compiler.run(model, feeds, optimizations="off") for model in (updated, optimized)]
    same = all(np.asarray(runs[0][name]).tobytes() == np.asarray(runs[1][name]).tobytes() for name in runs[0])
    computed = len(models.constants.graph.outputs) - len(models.conditions)
    alike = operators(updated) == operators(optimized)
    cells = [
        str(len(models.weights)),
        str(computed),
        "same" if alike else "other",
        "same" if same else "other",
    ]
    return [path.stem, *cells, f"{update:.2f}", f"{optimize:.2f}"], same


def main(words: Sequence[str]) -> int:
    """Measure, and print a table; returns the exit status."""
    place = words.index("--") if "--" in words else len(words)
    pipeline = words[place + 1] if place + 1 < len(words) else "O2"
    table = Table(["model", "weights", "computed", "operators", "bits", "update s", "optimize s"], "<>><<>>")
    count, same = 0, 0
    options = measured_models.arguments(__doc__ or "").parse_args(words[:place])
    with tempfile.TemporaryDirectory() as scratch:
        for case in measured_models.progress(measured_models.cases(options, Path(scratch))):
            try:
                row, is_same = measure(case.path, pipeline)
            except GraphoptError as error:  # such as a model without weights
                row, is_same = [case.name, "", "", error.message[:40], "", "", ""], True
            else:
                count, same = count + 1, same + is_same
            table.add(*row)
    print(table)
    print(f"{same} of {count} models: outputs have the same bits")
    return int(same < count)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
