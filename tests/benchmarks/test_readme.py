"""The counts in the README equal the counts of the code."""

from __future__ import annotations

import re
from pathlib import Path

import graphopt
from graphopt import ir
from zoo import SAMPLES

README = Path(__file__).resolve().parents[2] / "README.md"


def test_the_counts_of_the_table_are_those_of_the_samples() -> None:
    readme = README.read_text(encoding="utf-8").partition("<!-- begin nodes -->")[2]
    told = {
        name: (int(original), int(optimized))
        for name, original, optimized in re.findall(r"^\| (\w+) \| (\d+) \| (\d+) \|", readme, re.MULTILINE)
    }
    found = {}
    for name, sample in SAMPLES.items():
        report = graphopt.optimize(ir.from_proto(sample.build()), verify=False).report
        found[name] = (report.original.nodes, report.optimized.nodes)
    assert told == found, "run python -m benchmarks.nodes --docs README.md --docs docs/benchmarks.md"
