"""Gradients with sums at indices: correctness with several threads, and times of alternative forms.

    python -m benchmarks.scatter_gradients                 both
    python -m benchmarks.scatter_gradients --runs 400 --no-times   only correctness, in more runs

Sums of many terms at few positions are compared with numpy in each run, for joint graphs of operators that
select elements, and for a ScatterND with reduction, which loses terms with several threads. Then all known
forms of the gradient of a Gather from a table are timed alternately, with one thread.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import Any

import numpy as np
import onnx.parser

from benchmarks.doc_tables import machine, markdown_table, publish
from benchmarks.measured_models import arguments
from graphopt import ir
from graphopt.autodiff.joint_graph import COTANGENT, differentiate
from graphopt.ort import session
from graphopt.timing.alternating_runs import RaceLimits, Setup, race

THREADS = 4
OURS = "graphopt"
#: Rows of the table, elements per row, and number of rows read.
SIZES = (
    (2, 768, 512), (64, 64, 128), (64, 768, 2048), (256, 64, 128), (256, 768, 512), (1000, 128, 512),
    (1000, 128, 4096), (10000, 64, 50000), (30000, 64, 2048), (30000, 768, 128), (30000, 768, 512),
    (30000, 768, 2048), (30000, 768, 8192),
)  # fmt: skip
#: Maximum number of multiplications for which a matrix product is timed.
LARGEST_PRODUCT = 5e8

Feeds = dict[str, np.ndarray]


def parsed(text: str) -> ir.Model:
    """A model from ONNX text without a header."""
    return ir.from_proto(onnx.parser.parse_model(f'<ir_version: 10, opset_import: ["" : 18]> {text}'))


# Right ---------------------------------------------------------------------------------------


def sums(random: np.random.Generator) -> Iterator[tuple[str, ir.Model, Feeds, str, np.ndarray]]:
    """Sums at indices: a name, a model, its inputs, an output, and the expected value."""
    picks = random.integers(0, 50, 20_000)
    terms = random.standard_normal((20_000, 32))
    truth = np.zeros((50, 32))
    np.add.at(truth, picks, terms)
    rows = {"x": np.zeros((50, 32)), "i": picks, f"{COTANGENT}y": terms}
    table = truth, rows
    gathers = {
        "Gather of few rows": ("x", "i", *table),
        "Gather of rows": (
            "x",
            "i",
            np.vstack([truth, np.zeros((50, 32))]),
            {**rows, "x": np.zeros((100, 32))},
        ),
        "Gather along axis 1": (
            "x",
            "i",
            truth.T,
            {**rows, "x": np.zeros((32, 50)), f"{COTANGENT}y": terms.T},
        ),
        "GatherElements": ("x", "i", truth, {**rows, "i": np.repeat(picks[:, None], 32, axis=1)}),
        "GatherND": ("x", "i", truth, {**rows, "i": picks[:, None]}),
    }
    for name, (*_, expected, feeds) in gathers.items():
        op = name.partition(" ")[0] + ("<axis=1>" if "axis" in name else "")
        known = "100,32" if name == "Gather of rows" else ",".join(map(str, feeds["x"].shape))
        rank = ",".join("AB"[: feeds["i"].ndim])
        text = f"m (double[{known}] x, int64[{rank}] i) => (double[C,D] y) {{ y = {op}(x, i) }}"
        joint = differentiate(parsed(text), ["y"], ["x"]).model
        yield name, joint, feeds, "grad.x", expected
    text = """m (double[A,B] x, int64[C] i, double[C,B] g) => (double[A,B] y)
        { a = Constant<value_ints=[1]>() u = Unsqueeze(i, a) y = ScatterND<reduction="add">(x, u, g) }"""
    yield "ScatterND that adds", parsed(text), {"x": rows["x"], "i": picks, "g": terms}, "y", truth


def count_right(runs: int) -> list[tuple[str, int]]:
    """The number of runs with correct sums, by case."""
    found = []
    for name, model, feeds, output, truth in sums(np.random.default_rng(0)):
        running = session.create(ir.to_bytes(model), threads=THREADS)
        right = sum(
            bool(np.allclose(session.run(running, feeds, [output])[0], truth, atol=1e-9)) for _ in range(runs)
        )
        found.append((name, right))
    return found


# Fast ----------------------------------------------------------------------------------------


def forms(rows: int, width: int, count: int) -> dict[str, ir.Model]:
    """The gradient y of a table [rows, width], given cotangents g of the rows at i."""
    inputs = f"m (int64[{count}] i, float[{count},{width}] g) => (float[{rows},{width}] y)"
    column = "one = Constant<value_ints=[1]>() u = Unsqueeze(i, one)"
    zeros = f"shape = Constant<value_ints=[{rows}, {width}]>() zeros = ConstantOfShape(shape)"
    bodies = {
        "by columns": f"""{column} {zeros} wide = Constant<value_ints=[1, {width}]>() e = Expand(u, wide)
            y = ScatterElements<reduction="add">(zeros, e, g)""",
        "flat": f"""{column} shape = Constant<value_ints=[{rows}, {width}]>()
            size = Constant<value_ints=[{rows * width}]>() zeros = ConstantOfShape(size)
            none = Constant<value_int=0>() step = Constant<value_int=1>()
            width = Constant<value_int={width}>() all = Constant<value_ints=[-1]>()
            within = Range(none, width, step) first = Mul(u, width) places = Add(first, within)
            flat = Reshape(places, all) terms = Reshape(g, all)
            sums = ScatterElements<reduction="add">(zeros, flat, terms) y = Reshape(sums, shape)""",
        "ScatterND": f'{column} {zeros} y = ScatterND<reduction="add">(zeros, u, g)',
    }
    depth = f"depth = Constant<value_int={rows}>() bits = Constant<value_floats=[0.0, 1.0]>()"
    if rows * width * count <= LARGEST_PRODUCT:
        bodies["product"] = f"{depth} h = OneHot<axis=0>(i, depth, bits) y = MatMul(h, g)"
    made = {name: parsed(f"{inputs} {{ {body} }}") for name, body in bodies.items()}
    gather = (
        f"m (float[{rows},{width}] x, int64[{count}] i) => (float[{count},{width}] g) {{ g = Gather(x, i) }}"
    )
    joint = differentiate(parsed(gather), ["g"], ["x"], outputs="loss").model
    return {OURS: joint, **made}


def times(rows: int, width: int, count: int) -> dict[str, float]:
    """Milliseconds by form."""
    random = np.random.default_rng(0)
    picks = random.integers(0, rows, count)
    terms = random.standard_normal((count, width), np.float32)
    models = forms(rows, width, count)
    feeds: dict[str, Any] = {
        "i": picks,
        "g": terms,
        f"{COTANGENT}g": terms,
        "x": np.zeros((rows, width), np.float32),
    }
    sources = {name: ir.to_bytes(model) for name, model in models.items()}
    found = race(sources, Setup(feeds, threads=1), RaceLimits(rounds=15, processes=1, seconds=10), 0)
    return {name: 1e3 * min(min(runs) for runs in rounds) for name, rounds in found.items()}


def table_of_times(measured: dict[tuple[int, int, int], dict[str, float]]) -> str:
    """Milliseconds by size and form."""
    columns = (OURS, "product", "flat", "by columns", "ScatterND")
    lines = [
        (f"{rows} x {width}", count, *(f"{found[name]:.2f}" if name in found else "" for name in columns))
        for (rows, width, count), found in measured.items()
    ]
    return markdown_table(("table", "rows read", *(f"{name}, ms" for name in columns)), lines)


def main(words: list[str] | None = None) -> int:
    """Print both tables; the exit status is 1 if any gradient was wrong."""
    parser = arguments(__doc__.partition("\n")[0], models=False)
    parser.add_argument("--runs", type=int, default=100, help="runs with 4 threads (default: 100)")
    parser.add_argument("--no-times", action="store_true", help="omit the times")
    options = parser.parse_args(words)
    right = count_right(options.runs)
    told = [markdown_table((f"sums, {THREADS} threads", f"right of {options.runs} runs"), right)]
    measured = {} if options.no_times else {size: times(*size) for size in SIZES}
    if measured:
        told.append(table_of_times(measured))
    results = {
        "right": dict(right),
        "ms": {"x".join(map(str, size)): found for size, found in measured.items()},
    }
    publish(options, "scatter", "\n\n".join([*told, machine()]), results)
    return int(any(count < options.runs for name, count in right if not name.startswith("ScatterND")))


if __name__ == "__main__":
    sys.exit(main())
