"""Export small decoders with key-value caches and networks with dynamic feature axes, and verify them.

    pip install torch transformers onnxscript
    python -m benchmarks.decoders export DIR
    python -m benchmarks.decoders verify DIR [-O 3]

The decoders have 2 layers with random weights. Each is written three times: with the axis names of torch's
dynamo exporter (most of them distinct symbols), with typical names, and with all axes of all inputs dynamic,
even those that weights determine. Other networks are written only in the last form. ``verify`` optimizes each
model in DIR, and prints which of them were verified and the CPU time of the command.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import onnx

WORDS = 120
#: Past and new tokens in the example that is traced.
PAST, NEW = 6, 3


def configurations() -> dict[str, tuple[Any, Any]]:
    """Model classes and their configurations, by name."""
    import transformers as hf

    size = {"vocab_size": WORDS, "attn_implementation": "sdpa"}
    flat = {"hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 96}
    grouped = {**flat, "num_key_value_heads": 2}
    return {
        "llama": (hf.LlamaForCausalLM, hf.LlamaConfig(**grouped, **size)),
        "mistral": (hf.MistralForCausalLM, hf.MistralConfig(**grouped, **size)),
        "qwen2": (hf.Qwen2ForCausalLM, hf.Qwen2Config(**grouped, **size)),
        "phi": (hf.PhiForCausalLM, hf.PhiConfig(**flat, **size)),
        "gpt_neox": (hf.GPTNeoXForCausalLM, hf.GPTNeoXConfig(**flat, **size)),
        "gemma": (hf.GemmaForCausalLM, hf.GemmaConfig(**grouped, head_dim=16, **size)),
        "stablelm": (hf.StableLmForCausalLM, hf.StableLmConfig(**flat, num_key_value_heads=4, **size)),
        "gpt2": (hf.GPT2LMHeadModel, hf.GPT2Config(n_embd=64, n_layer=2, n_head=4, **size)),
        "opt": (
            hf.OPTForCausalLM,
            hf.OPTConfig(
                hidden_size=64, ffn_dim=96, num_hidden_layers=2, num_attention_heads=4,
                word_embed_proj_dim=64, **size,
            ),
        ),
        "bloom": (hf.BloomForCausalLM, hf.BloomConfig(vocab_size=WORDS, hidden_size=64, n_layer=2, n_head=4)),
    }  # fmt: skip


def export_decoder(name: str, path: Path) -> None:
    """Write one decoder, with the symbols of torch's exporter."""
    import torch
    from transformers import DynamicCache

    torch.manual_seed(0)
    kind, configuration = configurations()[name]
    model = kind(configuration).eval()
    layers = configuration.num_hidden_layers
    heads = getattr(configuration, "num_key_value_heads", None) or configuration.num_attention_heads
    width = getattr(configuration, "head_dim", None) or (
        configuration.hidden_size // configuration.num_attention_heads
    )

    class Step(torch.nn.Module):  # type: ignore[misc, unused-ignore]  # torch may be missing
        """A decoder with caches as plain tensors."""

        def __init__(self) -> None:
            super().__init__()
            self.model = model

        def forward(self, input_ids: Any, attention_mask: Any, *past: Any) -> Any:
            cache = DynamicCache()
            for layer in range(layers):
                cache.update(past[2 * layer], past[2 * layer + 1], layer)
            found = self.model(
                input_ids=input_ids, attention_mask=attention_mask, past_key_values=cache, use_cache=True
            )
            kept = found.past_key_values
            present = [
                part
                for layer in range(layers)
                for part in (kept.layers[layer].keys, kept.layers[layer].values)
            ]
            return (found.logits, *present)

    ids = torch.randint(0, WORDS, (2, NEW))
    mask = torch.ones(2, PAST + NEW, dtype=torch.int64)
    past = [torch.randn(2, heads, PAST, width) for _ in range(2 * layers)]
    caches = [f"past.{layer}.{part}" for layer in range(layers) for part in ("key", "value")]
    names = ["input_ids", "attention_mask", *caches]
    auto = torch.export.Dim.DYNAMIC
    axes = ({0: auto, 1: auto}, {0: auto, 1: auto}, tuple({0: auto, 2: auto} for _ in past))
    with torch.no_grad():
        program = torch.onnx.export(
            Step(), (ids, mask, *past), dynamo=True, opset_version=20, dynamic_shapes=axes,
            input_names=names, verbose=False,
            output_names=["logits", *(each.replace("past", "present") for each in caches)],
        )  # fmt: skip
    assert program is not None
    program.save(str(path))


def name_axes(source: str, path: Path) -> None:
    """Write a copy of the decoder ``source`` with axes named batch, past, seq and total."""
    proto = onnx.load(path.with_name(f"{source}.onnx"))
    for value in proto.graph.input:
        dims = value.type.tensor_type.shape.dim
        dims[0].dim_param = "batch"
        if value.name.startswith("past"):
            dims[2].dim_param = "past"
        else:
            dims[1].dim_param = "seq" if value.name == "input_ids" else "total"
    onnx.save(proto, path)


def open_axes(source: str, path: Path) -> None:
    """Write a copy with all axes of inputs and outputs dynamic, each with its own symbol."""
    proto = onnx.load(path.with_name(f"{source}.onnx"))
    for value in (*proto.graph.input, *proto.graph.output):
        for axis, dim in enumerate(value.type.tensor_type.shape.dim):
            dim.dim_param = f"{value.name}_dim_{axis}".replace(".", "_")
    del proto.graph.value_info[:]
    onnx.save(proto, path)


def open_nets() -> dict[str, Callable[[], tuple[Any, Any]]]:
    """Constructors of networks and example inputs, by name."""
    import torch
    from torch import nn

    class First(nn.Module):  # type: ignore[misc, unused-ignore]  # torch may be missing
        """The outputs of a recurrent layer, without its states, followed by a linear layer."""

        def __init__(self, recurrence: Any, width: int) -> None:
            super().__init__()
            self.recurrence, self.linear = recurrence, nn.Linear(width, 5)

        def forward(self, x: Any) -> Any:
            return self.linear(self.recurrence(x)[0])

    def convolution(channels: int, kernel: int, height: int, width: int) -> Callable[[], tuple[Any, Any]]:
        def make() -> tuple[Any, Any]:
            body = nn.Sequential(
                *(nn.Conv2d(channels, 6, kernel), nn.ReLU(), nn.MaxPool2d(2)),
                *(nn.Conv2d(6, 10, kernel), nn.ReLU(), nn.Flatten()),
            )
            x = torch.randn(2, channels, height, width)
            return nn.Sequential(body, nn.Linear(body(x).shape[1], 7), nn.Softmax(-1)), x

        return make

    def recurrent(kind: str, features: int, **options: Any) -> Callable[[], tuple[Any, Any]]:
        def make() -> tuple[Any, Any]:
            width = 12 * (2 if options.get("bidirectional") else 1)
            net = First(getattr(nn, kind)(features, 12, batch_first=True, **options), width)
            return net, torch.randn(2, 9, features)

        return make

    def temporal() -> tuple[Any, Any]:
        net = nn.Sequential(
            nn.Conv1d(8, 16, 5, padding=2), nn.BatchNorm1d(16), nn.PReLU(16), nn.Conv1d(16, 16, 3, groups=4),
            nn.ConvTranspose1d(16, 4, 2, stride=2),
        )  # fmt: skip
        return net.eval(), torch.randn(2, 8, 40)

    return {
        "lstm": recurrent("LSTM", 81),
        "lstm_both_ways": recurrent("LSTM", 162, num_layers=2, bidirectional=True),
        "gru": recurrent("GRU", 37),
        "rnn": recurrent("RNN", 50, num_layers=2),
        "cnn_notes": convolution(1, 5, 40, 72),
        "cnn_onsets": convolution(3, 3, 15, 80),
        "temporal": temporal,
        "mlp": lambda: (
            nn.Sequential(nn.Linear(45, 16), nn.LayerNorm(16), nn.Linear(16, 3)),
            torch.randn(2, 45),
        ),
    }


def export_net(make: Callable[[], tuple[Any, Any]], path: Path) -> None:
    """Write a network with all axes of its input dynamic."""
    import torch

    torch.manual_seed(0)
    net, example = make()
    with torch.no_grad():
        torch.onnx.export(
            net.eval(), (example,), str(path), dynamo=False, opset_version=17, input_names=["x"]
        )
    open_axes(path.stem, path)


def exports() -> Iterator[tuple[str, Callable[[Path], None]]]:
    """The names of all models, with functions that write them."""
    for name in configurations():
        yield name, partial(export_decoder, name)
        yield f"{name}_named", partial(name_axes, name)
        yield f"{name}_open", partial(open_axes, name)
    for name, make in open_nets().items():
        yield name, partial(export_net, make)


def verify(path: Path, options: list[str]) -> tuple[str, float]:
    """graphopt's report on the verification of a model, and the CPU seconds of the command."""
    before = os.times()
    with tempfile.TemporaryDirectory() as folder:
        done = subprocess.run(
            [sys.executable, "-m", "graphopt", "optimize", str(path), "-o", f"{folder}/out.onnx", *options],
            capture_output=True, text=True, check=False,
        )  # fmt: skip
    after = os.times()
    lines = [line.strip() for line in (done.stdout + "\n" + done.stderr).splitlines()]
    told = [line for line in lines if "verified" in line]
    seconds = sum(after[2:4]) - sum(before[2:4])
    return (told[-1] if told else f"exit status {done.returncode}: {lines[-1] if lines else ''}"), seconds


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("what", choices=["export", "verify"])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--only", default="", help="models whose names contain this")
    parser.add_argument("-O", dest="level", help="preset of graphopt optimize")
    arguments = parser.parse_args()
    if arguments.what == "export":
        arguments.folder.mkdir(parents=True, exist_ok=True)
        for name, write in exports():
            path = arguments.folder / f"{name}.onnx"
            if arguments.only not in name or path.exists():
                continue
            start = time.perf_counter()
            try:
                write(path)
                print(
                    f"{name}: {path.stat().st_size >> 10} KB in {time.perf_counter() - start:.0f} s",
                    flush=True,
                )
            except Exception as error:  # exporters raise different exceptions
                print(f"{name}: not exported: {str(error)[:300]}", flush=True)
        return
    options = [] if arguments.level is None else [f"-O{arguments.level}"]
    verified = 0
    paths = [path for path in sorted(arguments.folder.glob("*.onnx")) if arguments.only in path.name]
    for path in paths:
        told, seconds = verify(path, options)
        verified += told.startswith("verified")
        print(f"{path.stem:24} {seconds:6.1f} s  {told[:150]}", flush=True)
    print(f"{verified} of {len(paths)} verified")


if __name__ == "__main__":
    main()
