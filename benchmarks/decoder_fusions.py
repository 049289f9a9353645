"""Fusions of -O3 in small decoders with key-value caches, as exporters write them.

    pip install graphopt[decoders]
    python -m benchmarks.decoder_fusions export DIR
    python -m benchmarks.decoder_fusions count DIR [--docs docs/benchmarks.md]

``export`` writes 28 decoders with random weights: 7 architectures, in float16 and float32, by torch's exporters
based on TorchScript and on dynamo. ``count`` optimizes each of them with and without a verification, and counts
the attentions, normalizations and rotary embeddings that became one operator. float16 models are optimized for CUDA,
because onnxruntime's CPU kernels support few operators of this type; no GPU is required.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

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
#: The relation of the dims that exporters name separately.
RELATION = "total=past+seq"


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
    def mixers(self) -> dict[str, int]:
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
            axes = {**own, "logits": {0: "batch", 1: "seq"}, **{name: {0: "batch", 2: "total"} for name in present}}
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


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("action", choices=["export", "count"])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--only", default="", help="decoders whose names contain this")
    parser.add_argument("--width", type=int, default=256, help="elements of the hidden state")
    arguments = parser.parse_args()
    _export_all(arguments.folder, arguments.only, arguments.width)


if __name__ == "__main__":
    main()
