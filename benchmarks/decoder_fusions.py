"""Fusions of -O3 in small decoders with key-value caches, as exporters write them, and their latency.

    pip install graphopt[decoders]
    python -m benchmarks.decoder_fusions export DIR
    python -m benchmarks.decoder_fusions export DIR --exporter optimum
    python -m benchmarks.decoder_fusions count DIR [--docs docs/benchmarks.md]
    python -m benchmarks.decoder_fusions time DIR [--docs docs/benchmarks.md]

``export`` writes the decoders of :mod:`benchmarks.exported_decoders`. ``count`` optimizes each of them,
verifies the result on the CPU, and counts the attentions, normalizations and rotary embeddings that became
one operator. float16 models are optimized for CUDA, because onnxruntime's kernels for CPUs support few
operators of this type; no GPU is required. ``time`` compares the latency of the float32 models of torch's
exporters before and after, for a prompt and for decoding steps. Steps are also timed in a model that is
optimized for one new token (``--dim seq=1``).
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from benchmarks import doc_tables
from benchmarks.exported_decoders import EXPORTERS, TORCH, WORDS, Decoder, decoders, export
from graphopt import api, ir
from graphopt.timing.alternating_runs import RaceLimits, Setup
from graphopt.timing.compare_speed import compare_speed

#: The facts about dims that the exported models do not state.
RANGES = {name: (1, None) for name in ("batch", "seq", "batch_size", "sequence_length")}
#: Operators that count as fused, by the kind of computation.
FUSED = {
    "attention": ("MultiHeadAttention", "GroupQueryAttention", "Attention"),
    "norm": (
        "LayerNormalization",
        "RMSNormalization",
        "SimplifiedLayerNormalization",
        "SkipLayerNormalization",
        "SkipSimplifiedLayerNormalization",
    ),
    "rotary": ("RotaryEmbedding",),
}
#: Batches, past and new tokens of the timed runs.
RUNS = {"prompt": (1, 0, 128), "step at 128": (1, 128, 1), "at 1024": (1, 1024, 1)}


def _ranges(model: ir.Model) -> dict[str, tuple[int, int | None]]:
    """The guarantees about the dims that ``model`` has."""
    names = {getattr(dim, "value", dim) for value in model.graph.inputs for dim in value.shape or ()}
    return {name: limits for name, limits in RANGES.items() if name in names}


def _export_all(folder: Path, only: str, width: int, exporters: list[str]) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for decoder in decoders():
        path = folder / f"{decoder.name}.onnx"
        if only not in decoder.name or decoder.exporter not in exporters or path.exists():
            continue
        try:
            export(decoder, path, width)
            print(f"{decoder.name}: {path.stat().st_size >> 10} KB", flush=True)
        except Exception as error:  # exporters raise different exceptions
            print(f"{decoder.name}: not exported: {str(error)[:300]}", file=sys.stderr, flush=True)


@dataclass(frozen=True)
class Count:
    """The result for a decoder.

    Attributes:
        nodes: nodes before and after, without Constants.
        fused: fused operators by kind.
        operators: names of the fused operators.
        verdict: the result of verification.
    """

    decoder: Decoder
    nodes: tuple[int, int]
    fused: dict[str, int]
    operators: tuple[str, ...]
    verdict: str

    def row(self) -> list[object]:
        """A row of the table."""
        kinds = [f"{self.fused[kind]} of {number}" for kind, number in self.decoder.expected.items()]
        name = self.decoder
        return [f"{name.architecture}, {name.dtype}, {name.exporter}", *self.nodes, *kinds, self.verdict]


def count(decoder: Decoder, path: Path) -> Count:
    """Optimize ``decoder``, and count its fused operators."""
    original = ir.load(path)
    before = sum(node.op_type != "Constant" for node in original.graph)
    device = "cuda" if decoder.dtype == "float16" else "cpu"
    model, report = api.optimize(
        path, pipeline="O3", device=device, allow_fallback=True, dim_ranges=_ranges(original)
    )
    found = Counter(node.op_type for node in model.graph if node.op_type != "Constant")
    fused = {kind: sum(found[name] for name in names) for kind, names in FUSED.items()}
    names = [name for kind in FUSED.values() for name in kind if found[name]]
    verdict = report.verdict
    outcome = "verified" if verdict is not None and verdict.ok else str(verdict)
    return Count(decoder, (before, found.total()), fused, tuple(names), outcome)


def count_table(counts: list[Count]) -> str:
    """The table of counts."""
    header = ["decoder", "nodes", "after", *FUSED, "result"]
    return doc_tables.markdown_table(header, [each.row() for each in counts])


def feeds(path: Path, batch: int, past: int, new: int) -> dict[str, np.ndarray]:
    """Inputs of a decoder at the given sizes, without padding."""
    sizes = {"batch": batch, "past": past, "seq": new, "total": past + new}
    random = np.random.default_rng(0)
    found: dict[str, np.ndarray] = {}
    for value in ir.load(path).graph.inputs:
        assert value.name is not None and value.shape is not None and value.dtype is not None
        shape = [dim if isinstance(dim, int) else sizes[str(dim.value)] for dim in value.shape]
        if value.name == "input_ids":
            found[value.name] = random.integers(1, WORDS, shape)
        elif value.name == "attention_mask":
            found[value.name] = np.ones(shape, np.int64)
        elif value.name == "position_ids":
            found[value.name] = np.broadcast_to(np.arange(past, past + new), shape).copy()
        else:
            found[value.name] = random.standard_normal(shape).astype(value.dtype.numpy())
    return found


def _optimized(path: Path, target: Path, **dims: int) -> str:
    """The path of the result of -O3 with sizes ``dims``, without verification."""
    ranges = {name: limits for name, limits in _ranges(ir.load(path)).items() if name not in dims}
    model, _ = api.optimize(path, pipeline="O3", verify=False, dim_ranges=ranges, dims=dims)
    ir.save(model, target)
    return str(target)


def latency_row(decoder: Decoder, path: Path, limits: RaceLimits) -> list[object]:
    """A row of the table of latencies: ratios to the original's time for a prompt and steps."""
    row: list[object] = [f"{decoder.architecture}, {decoder.exporter}"]
    with tempfile.TemporaryDirectory() as folder:
        general = _optimized(path, Path(folder) / "general.onnx")
        step = _optimized(path, Path(folder) / "step.onnx", seq=1)
        for sizes in RUNS.values():
            sources = {"original": str(path), "graphopt": general} | (
                {"seq=1": step} if sizes[2] == 1 else {}
            )
            timing = compare_speed(sources, Setup(feeds(path, *sizes), threads=1), limits)
            row.append(f"{timing.speeds['original'].p50:.2f}")
            for name in list(sources)[1:]:
                comparison = timing.speeds[name].comparison
                assert comparison is not None
                slower = " slower" if comparison.conclusion == "slower" else ""
                row.append(f"{comparison.ratio:.2f}{slower}")
            row.append(f"{timing.band.low:.2f} … {timing.band.high:.2f}")
    return row


def latency_table(rows: list[list[object]]) -> str:
    """The table of latencies."""
    header = ["decoder"]
    for name, (_, _, new) in RUNS.items():
        header += [f"{name} (ms)", "ratio", *(["`seq=1`"] if new == 1 else []), "band"]
    table = doc_tables.markdown_table(header, rows)
    return f"{table}\n\nRatios to the original's time, on {doc_tables.machine()}."


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("action", choices=["export", "count", "time"])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--only", default="", help="decoders whose names contain this")
    parser.add_argument("--exporter", choices=EXPORTERS, action="append", help="export (default: torch's)")
    parser.add_argument("--width", type=int, default=256, help="elements of the hidden state")
    parser.add_argument("--processes", type=int, default=5, help="fresh processes of a timing (default: 5)")
    parser.add_argument("--docs", type=Path, action="append", default=[], help="pages to update")
    parser.add_argument("--json", type=Path, help="also write the result here")
    arguments = parser.parse_args()
    if arguments.action == "export":
        _export_all(arguments.folder, arguments.only, arguments.width, arguments.exporter or list(TORCH))
        return
    chosen = [
        (each, arguments.folder / f"{each.name}.onnx")
        for each in decoders()
        if arguments.only in each.name and (arguments.action == "count" or each.is_timed)
    ]
    chosen = [(each, path) for each, path in chosen if path.exists()]
    if arguments.action == "count":
        counts = []
        for decoder, path in chosen:
            counts.append(count(decoder, path))
            print(*counts[-1].row(), *counts[-1].operators, file=sys.stderr, flush=True)
        text, section = count_table(counts), "decoder-fusions"
    else:
        rows = []
        for decoder, path in chosen:
            rows.append(latency_row(decoder, path, RaceLimits(processes=arguments.processes)))
            print(*rows[-1], file=sys.stderr, flush=True)
        text, section = latency_table(rows), "decoder-latency"
    doc_tables.publish(arguments, section, text, {"table": text})


if __name__ == "__main__":
    main()
