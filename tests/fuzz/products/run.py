"""Compare random graphs with products without and with their kernels.

``python -m tests.fuzz.products.run --seed 0 --count 600`` reports faults, and exits with status 1 if there are any.
``--show SEED`` prints a graph.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from pathlib import Path

import onnx

from graphopt.process.child import Child
from tests.fuzz.kernels.batches import cpu_levels
from tests.fuzz.products.examination import SMALL_CHUNKS, Findings, examine
from tests.fuzz.products.families import FAMILIES, generate
from tests.fuzz.products.product_graph import ProductGraph

_BATCH = 48


def _text(g: ProductGraph) -> str:
    """The graph with the sizes of its symbols, and without the elements of constants."""
    model = g.model()
    for graph in (model.graph, *(item.g for node in model.graph.node for item in node.attribute)):
        for weight in graph.initializer:
            weight.raw_data = b""
            weight.data_location = onnx.TensorProto.EXTERNAL
    return f"{onnx.printer.to_text(model)}\n{g.sizes}"


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seed", type=int, default=0, help="the first seed")
    parser.add_argument("--count", type=int, default=96, help="the number of seeds")
    parser.add_argument("--family", choices=[each.__name__ for each in FAMILIES], help="only these graphs")
    parser.add_argument("--level", type=int, choices=cpu_levels(), default=cpu_levels()[-1])
    parser.add_argument("--show", type=int, metavar="SEED", help="print the graph of a seed")
    options = parser.parse_args()
    if options.show is not None:
        print(_text(generate(options.show)))
        return 0
    seeds = [
        seed
        for seed in range(options.seed, options.seed + options.count)
        if options.family in (None, FAMILIES[seed % len(FAMILIES)].__name__)
    ]
    compared = faults = 0
    with Child(preload=("onnxruntime",)) as child:
        for start in range(0, len(seeds), _BATCH):
            with tempfile.TemporaryDirectory() as folder:
                more = SMALL_CHUNKS if start // _BATCH % 2 else ()
                found: Findings = child.call(
                    examine, seeds[start : start + _BATCH], Path(folder), options.level, (1, 2, 8), more
                )
            print(*found.faults, sep="\n", end="\n" * bool(found.faults), flush=True)
            compared, faults = compared + found.compared, faults + len(found.faults)
    print(f"{compared} results compared, {faults} faults")
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
