"""Node counts, file sizes and verdicts: graphopt at its defaults against other optimizers.

    python -m benchmarks.nodes                      on the samples
    python -m benchmarks.nodes DIR                  on a folder of models
    python -m benchmarks.nodes DIR --only bert      on some of them

Each tool runs in a separate process, and benchmarks/judge.py judges its result. A peer is included if
its result is correct and at most 1.5 × the original file. Results of peers in a manifest (`peers`) are used;
`--measure-peers` runs the installed peers instead.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path
from typing import Any

from benchmarks import doc_tables, measured_models, measured_tools
from benchmarks.measured_models import Case
from benchmarks.measured_tools import GRAPHOPT, Tool

# Above this multiple of the original's size, fewer nodes were bought with folded constants.
LARGEST = 1.5
# onnxruntime's extended level fuses operators into its own domain: not a cleaned graph.
NOT_COMPARED = ("ort_ext",)


def measure(case: Case, tool: Tool, scratch: Path) -> dict[str, Any]:
    """Run one tool on one model."""
    target = scratch / f"{case.name}.{tool.name}.onnx"
    outcome = tool.run(case.path, target)
    result: dict[str, Any] = {"seconds": round(outcome.seconds, 3)}
    if outcome.status is None:
        return result | {"verdict": "timeout", "detail": outcome.message}
    if outcome.status or not target.is_file():
        return result | {"verdict": f"failed ({outcome.status})", "detail": outcome.message}
    result |= {"nodes": measured_models.count_nodes(target), "bytes": measured_models.size_on_disk(target)}
    return result | measured_tools.judge(case.path, target, case.entry)


def known_peers(entry: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """The results of peers in the manifest."""
    return {
        name: {"verdict": peer["verdict"], "nodes": peer.get("nodes_noconst"), "bytes": peer.get("bytes")}
        for name, peer in entry.get("peers", {}).items()
    }


def best_peer(model: dict[str, Any]) -> tuple[str, int] | None:
    """The peer with the fewest nodes among correct results that are not bloated, with its count."""
    counts = [
        (result["nodes"], name)
        for name, result in model["tools"].items()
        if name not in (GRAPHOPT, *NOT_COMPARED)
        and result["verdict"] == "ok"
        and result["bytes"] <= LARGEST * model["bytes"]
    ]
    if not counts:
        return None
    nodes, name = min(counts)
    return name, nodes


def table(models: list[dict[str, Any]]) -> str:
    """One row per model, and totals over the models where graphopt and some peer are correct."""
    peers = sorted({name for model in models for name in model["tools"]} - {GRAPHOPT, *NOT_COMPARED})
    rows: list[list[object]] = []
    total = {"original": 0, "graphopt": 0, "best": 0}
    compared = 0
    for model in models:
        own, best = model["tools"][GRAPHOPT], best_peer(model)
        cells = [_nodes(model["tools"].get(peer), model["bytes"]) for peer in peers]
        ratio = "–"
        if best and own["verdict"] == "ok":
            ratio = f"{own['nodes'] / best[1]:.2f}" if best[1] else "–"
            total["original"] += model["nodes"]
            total["graphopt"] += own["nodes"]
            total["best"] += best[1]
            compared += 1
        sizes = f"{_bytes(model['bytes'])} → {_bytes(own.get('bytes'))}"
        rows.append([model["model"], model["nodes"], _nodes(own, model["bytes"]), *cells, ratio, sizes])
    lines = [
        doc_tables.markdown_table(
            ["model", "original", "graphopt", *peers, "to the best peer", "file"], rows
        ),
        "",
        f"{sum(m['tools'][GRAPHOPT]['verdict'] == 'ok' for m in models)} of {len(models)} results of graphopt"
        f" are right. Over the {compared} models where a peer is right too: {total['original']} nodes,"
        f" graphopt {total['graphopt']}, best peers {total['best']}"
        + (f", ratio {total['graphopt'] / total['best']:.3f}." if total["best"] else "."),
    ]
    return "\n".join(lines)


def _nodes(result: dict[str, Any] | None, original_bytes: int) -> str:
    if result is None:
        return "–"
    if result["verdict"] != "ok":
        return str(result["verdict"])
    growth = result["bytes"] / original_bytes
    return f"{result['nodes']} ({growth:.1f} × bytes)" if growth > LARGEST else str(result["nodes"])


def _bytes(count: int | None) -> str:
    if count is None:
        return "–"
    return f"{count / 1e6:.1f} MB" if count >= 1e6 else f"{count / 1e3:.1f} kB"


def main() -> int:
    parser = measured_models.arguments(__doc__ or "")
    parser.add_argument("--measure-peers", action="store_true", help="even if the manifest has their results")
    parser.add_argument("--no-peers", action="store_true", help="run only graphopt")
    options = parser.parse_args()

    peers = [] if options.no_peers else measured_tools.peer_tools(options.peer_python)
    models: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory() as scratch_name:
        scratch = Path(scratch_name)
        for case in measured_models.progress(measured_models.cases(options, scratch)):
            results = {} if options.measure_peers else known_peers(case.entry)
            tools = [measured_tools.graphopt_tool(), *([] if results else peers)]
            results |= {tool.name: measure(case, tool, scratch) for tool in tools}
            models.append(
                {
                    "model": case.name,
                    "nodes": measured_models.count_nodes(case.path),
                    "bytes": measured_models.size_on_disk(case.path),
                    "tools": results,
                }
            )
    versions = doc_tables.versions(options.peer_python)
    text = table(models) + "\n\n" + ", ".join(f"{name} {version}" for name, version in versions.items()) + "."
    doc_tables.publish(options, "nodes", text, {"versions": versions, "models": models})
    return int(any(model["tools"][GRAPHOPT]["verdict"] != "ok" for model in models))


if __name__ == "__main__":
    sys.exit(main())
