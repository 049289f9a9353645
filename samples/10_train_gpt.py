"""Train a small GPT to write like this project's documentation, letter by letter, with AdamW.

python samples/10_train_gpt.py [FOLDER TO WRITE TO] [STEPS]
"""

from __future__ import annotations

import math
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

import graphopt

ROOT = Path(__file__).resolve().parents[1]


class Writer:
    """Builds a graph: ``w("Add", a, b)`` appends a node and returns the name of its output."""

    def __init__(self, seed: int) -> None:
        self.nodes: list[onnx.NodeProto] = []
        self.tensors: list[onnx.TensorProto] = []
        self._random = np.random.default_rng(seed)

    def __call__(self, op: str, *inputs: str, output: str = "", **attributes: Any) -> str:
        output = output or f"{op}_{len(self.nodes)}"
        self.nodes.append(helper.make_node(op, inputs, [output], **attributes))
        return output

    def tensor(self, name: str, data: Any) -> str:
        self.tensors.append(numpy_helper.from_array(np.asarray(data), name))
        return name

    def weight(self, name: str, *shape: int) -> str:
        return self.tensor(name, self._random.normal(0, 0.02, shape).astype(np.float32))

    def norm(self, x: str, name: str, width: int) -> str:
        scale = self.tensor(f"{name}.weight", np.ones(width, np.float32))
        bias = self.tensor(f"{name}.bias", np.zeros(width, np.float32))
        return self("LayerNormalization", x, scale, bias, axis=-1)

    def linear(self, x: str, name: str, inner: int, outer: int) -> str:
        bias = self.tensor(f"{name}.bias", np.zeros(outer, np.float32))
        return self("Add", self("MatMul", x, self.weight(f"{name}.weight", inner, outer)), bias)


def gpt(letters: int, context: int, width: int, heads: int, layers: int, seed: int = 0) -> onnx.ModelProto:
    """A GPT (Radford et al., 2019) of int64 ``ids`` [B, context] to ``logits`` [B, context, letters]."""
    w = Writer(seed)
    split = w.tensor("split", np.array([0, 0, 3 * heads, width // heads]))
    join = w.tensor("join", np.array([0, 0, width]))
    scale = w.tensor("scale", np.float32(1 / math.sqrt(width // heads)))
    past = w.tensor("past", np.tri(context, dtype=np.bool_))
    nothing = w.tensor("nothing", np.float32(-1e9))
    x = w("Add", w("Gather", w.weight("letters", letters, width), "ids"), w.weight("places", context, width))
    for number in range(layers):
        name = f"block{number}"
        found = w.linear(w.norm(x, f"{name}.norm1", width), f"{name}.qkv", width, 3 * width)
        parts = [f"{name}.{part}" for part in "qkv"]
        rows = w("Transpose", w("Reshape", found, split), perm=[0, 2, 1, 3])
        w.nodes.append(helper.make_node("Split", [rows], parts, axis=1, num_outputs=3))
        q, k, v = parts
        scores = w("Mul", w("MatMul", q, w("Transpose", k, perm=[0, 1, 3, 2])), scale)
        mixed = w("MatMul", w("Softmax", w("Where", past, scores, nothing), axis=-1), v)
        joined = w("Reshape", w("Transpose", mixed, perm=[0, 2, 1, 3]), join)
        x = w("Add", x, w.linear(joined, f"{name}.out", width, width))
        up = w("Gelu", w.linear(w.norm(x, f"{name}.norm2", width), f"{name}.up", width, 4 * width))
        x = w("Add", x, w.linear(up, f"{name}.down", 4 * width, width))
    w("MatMul", w.norm(x, "norm", width), w.weight("head", width, letters), output="logits")
    ids = helper.make_tensor_value_info("ids", TensorProto.INT64, ["B", context])
    logits = helper.make_tensor_value_info("logits", TensorProto.FLOAT, ["B", context, letters])
    graph = helper.make_graph(w.nodes, "gpt", [ids], [logits], w.tensors)
    return helper.make_model(graph, ir_version=9, opset_imports=[helper.make_opsetid("", 20)])


def batches(text: np.ndarray, size: int, context: int, steps: int, seed: int = 0) -> Iterator[dict[str, Any]]:
    """Random windows of ``text``, and the same windows shifted by one letter."""
    random = np.random.default_rng(seed)
    for _ in range(steps):
        pieces = random.integers(0, len(text) - context, size)[:, None] + np.arange(context + 1)
        yield {"ids": text[pieces[:, :-1]], "labels": text[pieces[:, 1:]]}


def main() -> None:
    """Train, print the losses, and generate a few letters."""
    folder, steps = (
        Path(sys.argv[1] if len(sys.argv) > 1 else "build/samples"),
        int((sys.argv[2:] or ["250"])[0]),
    )
    folder.mkdir(parents=True, exist_ok=True)
    pages = "".join(path.read_text(encoding="utf-8") for path in sorted((ROOT / "docs").glob("*.md")))
    alphabet, text = np.unique(list(pages.encode("ascii", "ignore").decode()), return_inverse=True)
    context = 32
    step = graphopt.train_step(
        gpt(len(alphabet), context, width=64, heads=4, layers=2),
        "cross_entropy:logits,labels,axis=-1",
        "adamw",
        weight_decay=0.1,
        no_decay=["*.bias", "*norm*"],
        clip_norm=1.0,
    )
    trainer = graphopt.Trainer(step)
    warm_up = 20

    def rate(done: int) -> float:
        return 4e-3 * min((done + 1) / warm_up, 0.5 + 0.5 * math.cos(math.pi * done / steps))

    losses = trainer.fit(batches(text, 16, context, steps), rate)
    for begin in range(0, steps, 50):
        print(f"steps {begin:3} to {begin + 49:3}: loss {np.mean(losses[begin : begin + 50]):.3f}")
    shares = np.bincount(text) / len(text)
    entropy = -float(np.sum(shares * np.log(shares)))
    print(f"loss {np.mean(losses[-20:]):.3f}; unigram baseline {entropy:.3f}")
    trainer.save(folder / "gpt.safetensors")

    trained = trainer.export()
    graphopt.save(trained, folder / "gpt.trained.onnx")
    executor = graphopt.compile(trained)
    written = list(text[:context])
    random = np.random.default_rng(0)
    for _ in range(100):
        logits = executor({"ids": np.array([written[-context:]])})["logits"][0, -1]
        shares = np.exp(2 * (logits - logits.max()))
        written.append(random.choice(len(alphabet), p=shares / shares.sum()))
    print("".join(alphabet[written]))
    assert np.mean(losses[-20:]) < entropy - 0.5


if __name__ == "__main__":
    main()
