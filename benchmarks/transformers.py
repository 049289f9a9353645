"""Export small transformers with random weights from torch, for the other benchmarks.

    pip install torch transformers onnxscript
    python -m benchmarks.transformers DIR
    python -m benchmarks.latency DIR

BERT, GPT-2, Llama (grouped heads, rotary positions) and T5's encoder (relative positions), 4 layers of width
256, by both of torch's exporters, with batch and sequence dynamic. DIR gets a manifest.json with recipes for
inputs.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Any

BATCH, LENGTH, WORDS = 1, 128, 2000
#: torch.onnx.export's `dynamo`, and the opset.
EXPORTERS = {"torchscript": (False, 17), "dynamo": (True, 18)}


def configurations() -> dict[str, tuple[Any, Any]]:
    """Model classes and their configurations, by name."""
    import transformers as hf

    size = {"vocab_size": WORDS, "attn_implementation": "sdpa"}
    bert = hf.BertConfig(
        hidden_size=256, num_hidden_layers=4, num_attention_heads=4, intermediate_size=1024, **size
    )
    gpt2 = hf.GPT2Config(n_embd=256, n_layer=4, n_head=4, **size)
    llama = hf.LlamaConfig(
        hidden_size=256,
        intermediate_size=704,
        num_hidden_layers=4,
        num_attention_heads=8,
        num_key_value_heads=2,
        **size,
    )
    t5 = hf.T5Config(vocab_size=WORDS, d_model=256, d_kv=64, d_ff=1024, num_layers=4, num_heads=4)
    return {
        "bert": (hf.BertModel, bert),
        "gpt2": (hf.GPT2LMHeadModel, gpt2),
        "llama": (hf.LlamaForCausalLM, llama),
        "t5": (hf.T5EncoderModel, t5),
    }


def export(name: str, exporter: str, path: Path) -> None:
    """Write one model."""
    import torch

    torch.manual_seed(0)
    kind, configuration = configurations()[name]
    model = kind(configuration).eval()

    class Plain(torch.nn.Module):  # type: ignore[misc, unused-ignore]  # torch may be missing
        """Accepts and returns plain tensors."""

        def __init__(self) -> None:
            super().__init__()
            self.model = model

        def forward(self, input_ids: Any, attention_mask: Any) -> Any:
            more = {} if name in ("bert", "t5") else {"use_cache": False}
            return self.model(input_ids=input_ids, attention_mask=attention_mask, **more)[0]

    ids = torch.randint(0, WORDS, (2, 64))
    mask = torch.ones_like(ids)
    mask[1, 50:] = 0
    dynamo, opset = EXPORTERS[exporter]
    names = ["input_ids", "attention_mask"]
    if dynamo:
        dims = {0: torch.export.Dim("batch"), 1: torch.export.Dim("seq")}  # both inputs share them
        dynamic: dict[str, Any] = {"dynamic_shapes": (dims, dims), "external_data": False, "verbose": False}
    else:
        dynamic = {"dynamic_axes": {each: {0: "batch", 1: "seq"} for each in names}}
    with torch.no_grad():
        torch.onnx.export(
            Plain(),
            (ids, mask),
            str(path),
            input_names=names,
            output_names=["out"],
            opset_version=opset,
            dynamo=dynamo,
            **dynamic,
        )


def entry(path: Path) -> dict[str, Any]:
    """The manifest entry of a model: see benchmarks.inputs."""
    words = {"dtype": "int64", "gen": {"kind": "randint", "low": 0, "high": WORDS}}
    mask = {"dtype": "int64", "gen": {"kind": "ones"}}
    shape = [BATCH, LENGTH]
    return {
        "file": path.name,
        "inputs": {"input_ids": words, "attention_mask": mask},
        "shape_sets": [{"input_ids": shape, "attention_mask": shape}],
    }


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("folder", type=Path, help="where the models go")
    folder: Path = parser.parse_args().folder
    folder.mkdir(parents=True, exist_ok=True)
    entries, failures = [], 0
    for name in ("bert", "gpt2", "llama", "t5"):
        for exporter in EXPORTERS:
            path = folder / f"{name}_{exporter}.onnx"
            try:
                export(name, exporter, path)
            except Exception as error:  # exporters raise exceptions of any type, and some reject some models
                print(f"{path.stem}: {type(error).__name__}: {str(error).splitlines()[0]}", file=sys.stderr)
                path.unlink(missing_ok=True)
                failures += 1
                continue
            entries.append(entry(path))
            print(f"{path.stem}: {path.stat().st_size / 1e6:.1f} MB")
    (folder / "manifest.json").write_text(json.dumps(entries, indent=1) + "\n", encoding="utf-8")
    return int(failures == len(EXPORTERS) * 4)


if __name__ == "__main__":
    sys.exit(main())
