"""See the package."""

from __future__ import annotations

import importlib
import pkgutil
import re
import sys
from collections import Counter
from collections.abc import Iterator
from dataclasses import asdict

from benchmarks import torch_gradients
from benchmarks.doc_tables import markdown_table, publish
from benchmarks.measured_models import arguments
from benchmarks.torch_gradients.common import Case, Outcome, judge, judge_split

_OTHERS = ("common", "__main__")


def families() -> Iterator[tuple[str, Iterator[Case]]]:
    """The families' names and cases."""
    for info in sorted(pkgutil.iter_modules(torch_gradients.__path__), key=lambda info: info.name):
        if info.name not in _OTHERS:
            module = importlib.import_module(f"{torch_gradients.__name__}.{info.name}")
            yield info.name, module.cases()


def table(found: dict[str, list[Outcome]]) -> str:
    """Right, refused and wrong by family."""
    rows = []
    for family, outcomes in found.items():
        count = Counter(outcome.verdict for outcome in outcomes)
        wrong = count["wrong"] + count["broken"]
        rows.append((family, len(outcomes), count["right"], count["refused"], wrong))
    return markdown_table(("family", "cases", "right", "refused", "wrong"), rows)


def _judge_splits(only: str) -> int:
    """Report the number of equivalent splits; the exit status is 1 if any is not."""
    status = 0
    for budget in (1.0, 0.0):
        counts: Counter[str] = Counter()
        for family, cases in families():
            whole = re.search(only, family)
            for case in cases:
                if whole or re.search(only, case.label):
                    outcome = judge_split(case, budget)
                    counts[outcome.verdict] += 1
                    if outcome.verdict in ("different", "broken"):
                        print(f"{outcome.verdict}: {outcome.label}: {outcome.reason}")
                        status = 1
        print(
            f"budget {budget:g}: " + "  ".join(f"{verdict} {counts[verdict]}" for verdict in sorted(counts))
        )
    return status


def main(words: list[str] | None = None) -> int:
    """Judge the cases; the exit status is 1 if any is wrong."""
    parser = arguments("Gradients against PyTorch's over operators' attributes.", models=False)
    parser.add_argument(
        "--only", default="", metavar="RE", help="families whose names, or cases whose labels match"
    )
    parser.add_argument("--split", action="store_true", help="only compare splits with joint graphs")
    parser.add_argument("--by-group", action="store_true", help="differentiate groups of one node or more")
    options = parser.parse_args(words)
    if options.split:
        return _judge_splits(options.only)
    found: dict[str, list[Outcome]] = {}
    for family, cases in families():
        whole = re.search(options.only, family)
        for case in cases:
            if whole or re.search(options.only, case.label):
                outcome = judge(case, options.by_group)
                found.setdefault(family, []).append(outcome)
                if outcome.verdict != "right":
                    print(f"{outcome.verdict}: {outcome.label}: {outcome.reason}")
    told = {family: [asdict(outcome) for outcome in outcomes] for family, outcomes in found.items()}
    publish(options, "torch", table(found), told)
    verdicts = {outcome.verdict for outcomes in found.values() for outcome in outcomes}
    return int(bool(verdicts & {"wrong", "broken"}))


if __name__ == "__main__":
    sys.exit(main())
