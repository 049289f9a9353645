"""Fusions of -O3 in small decoders with key-value caches, as exporters write them, and their latency.

    pip install graphopt[decoders]
    python -m benchmarks.decoder_fusions export DIR
    python -m benchmarks.decoder_fusions count DIR [--docs docs/benchmarks.md]
    python -m benchmarks.decoder_fusions time DIR [--docs docs/benchmarks.md]

``export`` writes 28 decoders with 2 layers and random weights: 7 architectures, in float16 and float32, by
torch's exporters based on TorchScript (attention as separate operators) and on dynamo
(scaled_dot_product_attention). ``count`` optimizes each of them, verifies the result on the CPU, and counts
the attentions, normalizations and rotary embeddings that became one operator. float16 models are optimized
for CUDA, because onnxruntime's kernels for CPUs support few operators of this type; no GPU is required.
``time`` compares the latency of the float32 models before and after, for a prompt and for one decoding step.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks import doc_tables
from graphopt import api, ir
from graphopt.timing.alternating_runs import RaceLimits, Setup
from graphopt.timing.compare_speed import compare_speed

ARCHITECTURES = ("llama", "mistral", "qwen2", "qwen3", "gemma", "phi", "gpt_neox")
DTYPES = ("float16", "float32")
EXPORTERS = ("torchscript", "dynamo")
#: The opset of each exporter: its default.
OPSETS = {"torchscript": 17, "dynamo": 20}
WORDS, LAYERS = 128, 2
#: Batches, and past and new tokens, in the example that is traced.
BATCH, PAST, NEW = 2, 6, 3
#: The number of keys that a query of Mistral attends to.
WINDOW = 5
#: The facts about dims that the exported models do not state.
RANGES = {"batch": (1, None), "seq": (1, None)}
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
RUNS = {"prompt": (1, 0, 128), "step": (1, 128, 1)}


@dataclass(frozen=True)
class Decoder:
    """One exported model."""

    architecture: str
    dtype: str
    exporter: str

    @property
    def name(self) -> str:
        """The name of its file, without suffix."""
        return f"{self.architecture}_{self.dtype}_{self.exporter}"

    @property
    def expected(self) -> dict[str, int]:
        """The numbers of attentions, normalizations and rotary embeddings in the model."""
        norms = 2 * LAYERS + 1
        if self.architecture == "qwen3":
            norms += 2 * LAYERS  # of queries and keys
        elif self.architecture == "phi":
            norms = LAYERS + 1  # attention and the feed-forward network share one
        return {"attention": LAYERS, "norm": norms, "rotary": 2 * LAYERS}


def decoders() -> Iterator[Decoder]:
    """All decoders."""
    for architecture in ARCHITECTURES:
        for dtype in DTYPES:
            for exporter in EXPORTERS:
                yield Decoder(architecture, dtype, exporter)


def _model(decoder: Decoder, width: int) -> tuple[Any, Any]:
    """The model of ``decoder`` and its configuration."""
    import transformers as hf

    eager = "eager" if decoder.exporter == "torchscript" else "sdpa"
    common = {
        "vocab_size": WORDS, "hidden_size": width, "num_hidden_layers": LAYERS, "num_attention_heads": 8,
        "intermediate_size": 2 * width, "max_position_embeddings": 2048, "attn_implementation": eager,
        "initializer_range": 0.1,  # 0.02, the default, makes attention almost uniform
    }  # fmt: skip
    grouped = {**common, "num_key_value_heads": 2, "head_dim": width // 8}
    kinds = {
        "llama": (hf.LlamaForCausalLM, hf.LlamaConfig, grouped),
        "mistral": (hf.MistralForCausalLM, hf.MistralConfig, {**grouped, "sliding_window": WINDOW}),
        "qwen2": (hf.Qwen2ForCausalLM, hf.Qwen2Config, grouped),
        "qwen3": (hf.Qwen3ForCausalLM, hf.Qwen3Config, grouped),
        "gemma": (hf.GemmaForCausalLM, hf.GemmaConfig, grouped),
        "phi": (hf.PhiForCausalLM, hf.PhiConfig, common),
        "gpt_neox": (hf.GPTNeoXForCausalLM, hf.GPTNeoXConfig, common),
    }
    kind, configuration, options = kinds[decoder.architecture]
    made = configuration(**options)
    return kind(made), made


def export(decoder: Decoder, path: Path, width: int) -> None:
    """Write ``decoder``."""
    import torch
    from transformers import DynamicCache

    torch.manual_seed(0)
    dtype = getattr(torch, decoder.dtype)
    model, configuration = _model(decoder, width)
    for parameter in model.parameters():
        if parameter.ndim == 1:  # scales of 1 and biases of 0 would be folded
            parameter.data += 0.1 * torch.randn(parameter.shape)
    model = model.to(dtype).eval()
    heads = getattr(configuration, "num_key_value_heads", None) or configuration.num_attention_heads

    class Step(torch.nn.Module):  # type: ignore[misc, unused-ignore]  # torch may be missing
        """A decoder with caches as plain tensors."""

        def __init__(self) -> None:
            super().__init__()
            self.model = model

        def forward(self, input_ids: Any, attention_mask: Any, position_ids: Any, *past: Any) -> Any:
            cache = DynamicCache()
            for layer in range(LAYERS):
                cache.update(past[2 * layer], past[2 * layer + 1], layer)
            found = self.model(
                input_ids=input_ids, attention_mask=attention_mask, position_ids=position_ids,
                past_key_values=cache, use_cache=True,
            )  # fmt: skip
            kept = found.past_key_values.layers
            return (found.logits, *(part for layer in kept for part in (layer.keys, layer.values)))

    ids = torch.randint(0, WORDS, (BATCH, NEW))
    mask = torch.ones(BATCH, PAST + NEW, dtype=torch.int64)
    positions = torch.arange(PAST, PAST + NEW).expand(BATCH, NEW).contiguous()
    past = [torch.randn(BATCH, heads, PAST, width // 8, dtype=dtype) for _ in range(2 * LAYERS)]
    caches = [f"past.{layer}.{part}" for layer in range(LAYERS) for part in ("key", "value")]
    present = [each.replace("past", "present") for each in caches]
    names = ["input_ids", "attention_mask", "position_ids", *caches]
    own = {name: {0: "batch", 1: "seq"} for name in ("input_ids", "position_ids")}
    own |= {"attention_mask": {0: "batch", 1: "total"}, **{name: {0: "batch", 2: "past"} for name in caches}}
    options: dict[str, Any] = {"opset_version": OPSETS[decoder.exporter], "input_names": names}
    options["output_names"] = ["logits", *present]
    with torch.no_grad():
        if decoder.exporter == "torchscript":
            axes = {
                **own,
                "logits": {0: "batch", 1: "seq"},
                **{name: {0: "batch", 2: "total"} for name in present},
            }
            torch.onnx.export(
                Step(), (ids, mask, positions, *past), str(path), dynamo=False, dynamic_axes=axes, **options
            )
            return
        shapes = [own[name] for name in names]
        program = torch.onnx.export(
            Step(), (ids, mask, positions, *past), dynamo=True, verbose=False,
            dynamic_shapes=(*shapes[:3], tuple(shapes[3:])), **options,
        )  # fmt: skip
    assert program is not None
    program.save(str(path))


def _export_all(folder: Path, only: str, width: int) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for decoder in decoders():
        path = folder / f"{decoder.name}.onnx"
        if only not in decoder.name or path.exists():
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
    before = sum(node.op_type != "Constant" for node in ir.load(path).graph)
    device = "cuda" if decoder.dtype == "float16" else "cpu"
    model, report = api.optimize(path, pipeline="O3", device=device, allow_fallback=True, dim_ranges=RANGES)
    found = Counter(node.op_type for node in model.graph)
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


def latency_rows(decoder: Decoder, path: Path, limits: RaceLimits) -> list[object]:
    """A row of the table of latencies: ratios to the original's time for a prompt and a step."""
    row: list[object] = [f"{decoder.architecture}, {decoder.exporter}"]
    with tempfile.TemporaryDirectory() as folder:
        target = Path(folder) / "after.onnx"
        model, _ = api.optimize(path, pipeline="O3", verify=False, dim_ranges=RANGES)
        ir.save(model, target)
        for sizes in RUNS.values():
            sources = {"original": str(path), "graphopt": str(target)}
            timing = compare_speed(sources, Setup(feeds(path, *sizes), threads=1), limits)
            comparison = timing.speeds["graphopt"].comparison
            assert comparison is not None
            slower = " slower" if comparison.conclusion == "slower" else ""
            band = f"{timing.band.low:.2f} … {timing.band.high:.2f}"
            row += [f"{timing.speeds['original'].p50:.2f}", f"{comparison.ratio:.2f}{slower}", band]
    return row


def latency_table(rows: list[list[object]]) -> str:
    """The table of latencies."""
    header = ["decoder", *(text for run in RUNS for text in (f"{run} (ms)", "ratio", "band"))]
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
    parser.add_argument("--width", type=int, default=256, help="elements of the hidden state")
    parser.add_argument("--processes", type=int, default=5, help="fresh processes of a timing (default: 5)")
    parser.add_argument("--docs", type=Path, action="append", default=[], help="pages to update")
    parser.add_argument("--json", type=Path, help="also write the result here")
    arguments = parser.parse_args()
    if arguments.action == "export":
        _export_all(arguments.folder, arguments.only, arguments.width)
        return
    chosen = [
        (each, arguments.folder / f"{each.name}.onnx")
        for each in decoders()
        if arguments.only in each.name and (arguments.action == "count" or each.dtype == "float32")
    ]
    if arguments.action == "count":
        counts = []
        for decoder, path in chosen:
            counts.append(count(decoder, path))
            print(*counts[-1].row(), *counts[-1].operators, file=sys.stderr, flush=True)
        text, section = count_table(counts), "decoder-fusions"
    else:
        rows = []
        for decoder, path in chosen:
            rows.append(latency_rows(decoder, path, RaceLimits(processes=arguments.processes)))
            print(*rows[-1], file=sys.stderr, flush=True)
        text, section = latency_table(rows), "decoder-latency"
    doc_tables.publish(arguments, section, text, {"table": text})


if __name__ == "__main__":
    main()
