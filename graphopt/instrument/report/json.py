"""The report of an optimization for JSON."""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from graphopt.passes.pass_records import PassRecord

if TYPE_CHECKING:
    from graphopt.instrument.report.report import Report
    from graphopt.verification.verdict import Verdict


def as_dict(report: Report) -> dict[str, Any]:
    """The report for JSON."""
    names = list(dict.fromkeys([*report.original.ops, *report.optimized.ops]))
    return {
        "pipeline": report.pipeline,
        "original": {**report.original.to_dict(), "file_bytes": report.file_bytes[0]},
        "optimized": {**report.optimized.to_dict(), "file_bytes": report.file_bytes[1]},
        "ops": {
            name: [report.original.ops.get(name, 0), report.optimized.ops.get(name, 0)] for name in names
        },
        "interface": report.interface.to_dict(),
        "passes": [_record_dict(report, record) for record in report.passes],
        "rewrites": {owner: count for owner, count in report.rules().most_common()},
        "skipped": report.skipped,
        "made_constants": [made.to_dict() for made in report.made],
        "dropped": [asdict(drop) for drop in report.dropped],
        "search_runs": report.search_runs,
        "fused": [one.to_dict() for one in report.fused],
        "kernels": list(report.kernels),
        "missed": [place.to_dict() for place in report.missed],
        "refusals": [refused.to_dict() for refused in report.refusals],
        "remarks": report.remarks,
        "hints": [hint.to_dict() for hint in report.hints],
        "counters": report.counters,
        "costs": _costs_dict(report),
        "variants": [variant.to_dict() for variant in report.variants],
        "tuning": None if report.tuning is None else report.tuning.to_dict(),
        "stopped_before": asdict(report.next_action) if report.next_action else None,
        "settings": json.loads(report.settings) if report.settings else None,
        "verification": verdict_dict(report.verdict),
        "seconds": report.seconds,
    }


def _costs_dict(report: Report) -> dict[str, Any] | None:
    """The table of costs and its decisions, if there are any."""
    if report.costs is None or not report.decisions:
        return None
    decisions = [{**asdict(decision), "asked": count} for decision, count in report.decisions.items()]
    return {"name": report.costs.name, "where": report.costs.where, "decisions": decisions}


def _record_dict(report: Report, record: PassRecord) -> dict[str, Any]:
    return {
        **vars(record),
        "changes": dict(record.changes),
        "rewrites": dict(record.rewrites),
        "weight_bytes": report.weight_bytes.get(record.index),
    }


def verdict_dict(verdict: Verdict | None) -> dict[str, Any] | None:
    """A verdict for JSON, if there is one; without a comparison, nothing is reported as equal."""
    if verdict is None:
        return None
    equal = verdict.ok and verdict.unverifiable is None
    return {"equal": equal, "summary": verdict.summary(), "max_delta": verdict.delta, **verdict.to_dict()}
