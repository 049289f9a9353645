"""Fusions that -O3 recognizes in the test models of other optimizers, with reasons for the rest.

    python -m benchmarks.recognition SUITE              all models in folders named fusion, or …_fusion
    python -m benchmarks.recognition SUITE --only gelu  models whose name matches
    python -m benchmarks.recognition SUITE --all        also models in other folders
    python -m benchmarks.recognition SUITE -v           also reports the result of each model

SUITE is a folder of models, such as onnxruntime's `onnxruntime/test/testdata`. Models are grouped by the
first words of their names. A model counts as fused if `graphopt explain` names a fused operator, as shortened
if it only has fewer nodes, and as left otherwise, which is intended for many. Models that onnxruntime does
not load are skipped.
"""

from __future__ import annotations

import argparse
import itertools
import re
import sys
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from benchmarks import doc_tables
from graphopt import api, ir
from graphopt.context import Refusal
from graphopt.errors import GraphoptError
from graphopt.passes.instrumentation import PassInstrumentation
from graphopt.rules import all_rules

#: Number of words of a model's name that identify its subject.
_WORDS = 2
_PREFIXES = ("fuse", "gh", "negative")
_VARIANTS = ("format", "fusion", "opset", "scale", "use", "with")


@dataclass(frozen=True)
class Recognition:
    """The result for a model.

    Attributes:
        fused: the fused operators.
        nodes: before and after.
        reasons: the reasons for unfused sites, without names.
    """

    group: str
    name: str
    fused: tuple[str, ...]
    nodes: tuple[int, int]
    reasons: tuple[str, ...]

    @property
    def outcome(self) -> str:
        """``fused``, ``shortened`` or ``left``."""
        return "fused" if self.fused else "shortened" if self.nodes[1] < self.nodes[0] else "left"


def models_in(suite: Path, only: str, everywhere: bool) -> Iterator[Path]:
    """The models in folders of fusions, or in all, in order."""
    for path in sorted(suite.rglob("*.onnx")):
        inside = everywhere or any(
            re.fullmatch(r"(.*_)?fusion", part) for part in path.relative_to(suite).parts[:-1]
        )
        if inside and re.search(only, path.stem):
            yield path


class Refusals(PassInstrumentation):
    """Records refusals of rules without anchors, which ``explain`` does not report."""

    def __init__(self) -> None:
        self.reasons: dict[str, None] = {}
        told = {rule.pattern for rule in all_rules() if rule.anchors}
        self._silent = {rule.name for rule in all_rules() if rule.is_fusion and rule.pattern not in told}

    def refused(self, refusal: Refusal) -> None:
        if refusal.rule in self._silent:
            self.reasons[f"{refusal.rule}: {refusal.reason}"] = None


def recognize(path: Path) -> Recognition | None:
    """The result of -O3 for a model; ``None`` if it can't be loaded."""
    from graphopt.ort import session

    try:
        session.create(path, optimizations="off", threads=1)
        model = api.load_model(path)
        explanation = api.explain(api.copy(model))
        refusals = Refusals()
        after = api.optimize(model, pipeline="O3", verify=False, instruments=[refusals]).model
    except GraphoptError:
        return None
    reasons = dict.fromkeys(f"{one.rule}: {one.kind}" for one in explanation.missed)
    if not explanation.fused:
        reasons |= refusals.reasons
    return Recognition(
        group_of(path.stem),
        path.stem,
        tuple(one.op for one in explanation.fused),
        (count(api.load_model(path)), count(after)),
        tuple(reasons),
    )


def group_of(name: str) -> str:
    """The first words of a model's name, which identify its subject."""
    words = [word for word in re.split(r"[\W\d_]+", name.lower()) if len(word) > 1 and word not in _PREFIXES]
    about = list(itertools.takewhile(lambda word: word not in _VARIANTS, words)) or words
    return " ".join(about[:_WORDS])


def count(model: ir.Model) -> int:
    """The number of nodes, including those of bodies, without Constant."""
    return sum(node.op_type != "Constant" for graph in ir.graphs_of(model) for node in graph)


def table(found: list[Recognition]) -> str:
    """A row per group, and below a row per reason."""
    groups: dict[str, list[Recognition]] = {}
    for one in found:
        groups.setdefault(one.group, []).append(one)
    rows: list[list[object]] = []
    for group, members in sorted(groups.items()):
        outcomes = Counter(one.outcome for one in members)
        ops = Counter(op.removeprefix("com.microsoft.") for one in members for op in one.fused)
        told = ", ".join(f"{op} × {times}" for op, times in sorted(ops.items()))
        counts = [outcomes[outcome] for outcome in ("fused", "shortened", "left")]
        rows.append([group, len(members), *counts, told])
    totals = [sum(one.outcome == outcome for one in found) for outcome in ("fused", "shortened", "left")]
    rows.append(["**all**", len(found), *totals, ""])
    header = ["models", "of", "fused", "shortened", "left", "fused operators"]
    reasons = Counter(reason for one in found for reason in one.reasons)
    told_reasons = [[reason, times] for reason, times in sorted(reasons.items(), key=lambda item: -item[1])]
    return "\n\n".join(
        [
            doc_tables.markdown_table(header, rows),
            "Reasons for missed fusions, with the number of models:",
            doc_tables.markdown_table(["rule and reason", "models"], told_reasons),
        ]
    )


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("suite", type=Path, help="a folder of models")
    parser.add_argument("--only", default="", metavar="RE", help="only models whose name matches")
    parser.add_argument("--all", action="store_true", help="models in any folder")
    parser.add_argument(
        "--section", default="recognition", metavar="NAME", help="section of the page (default: recognition)"
    )
    parser.add_argument("--json", type=Path, metavar="FILE", help="also write the results as JSON")
    parser.add_argument(
        "--docs", type=Path, action="append", default=[], metavar="FILE", help="put the table into this page"
    )
    parser.add_argument("-v", "--verbose", action="store_true", help="report each model")
    options = parser.parse_args()

    found = []
    for path in models_in(options.suite, options.only, options.all):
        one = recognize(path)
        if one is None:
            continue
        found.append(one)
        if options.verbose:
            told = ", ".join(one.fused) or "; ".join(one.reasons) or "-"
            print(f"{one.outcome:9} {one.nodes[0]:3} → {one.nodes[1]:3} {one.name}: {told}", file=sys.stderr)
    if not found:
        sys.exit(f"no model to look at in {options.suite}")
    versions = doc_tables.versions(sys.executable)
    told_versions = ", ".join(f"{name} {version}" for name, version in versions.items())
    results = {"versions": versions, "models": [vars(one) | {"outcome": one.outcome} for one in found]}
    doc_tables.publish(options, options.section, f"{table(found)}\n\n{told_versions}.", results)
    return 0


if __name__ == "__main__":
    sys.exit(main())
