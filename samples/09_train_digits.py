"""Train a convolutional network on handwritten digits, with Adam, on plain onnxruntime.

python samples/09_train_digits.py [FOLDER TO WRITE TO]
"""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import onnx
import onnx.parser
import onnxruntime

import graphopt

#: 8x8 images in, logits of ten digits out.
NETWORK = """
<ir_version: 8, opset_import: ["" : 17]>
digits (float[N, 1, 8, 8] images) => (float[N, 10] logits) {
    a = Conv <pads = [1, 1, 1, 1]> (images, conv1_weight, conv1_bias)
    b = Relu (a)
    c = Conv <pads = [1, 1, 1, 1]> (b, conv2_weight, conv2_bias)
    d = Relu (c)
    e = MaxPool <kernel_shape = [2, 2], strides = [2, 2]> (d)
    f = Flatten (e)
    g = Gemm <transB = 1> (f, fc1_weight, fc1_bias)
    h = Relu (g)
    logits = Gemm <transB = 1> (h, fc2_weight, fc2_bias)
}
"""
SHAPES = {"conv1": (16, 1, 3, 3), "conv2": (32, 16, 3, 3), "fc1": (64, 512), "fc2": (10, 64)}


def network(seed: int = 0) -> onnx.ModelProto:
    """The network with random weights, initialized like torch's layers."""
    model, random = onnx.parser.parse_model(NETWORK), np.random.default_rng(seed)
    for name, shape in SHAPES.items():
        bound = 1 / np.sqrt(np.prod(shape[1:]))
        for part, dims in (("weight", shape), ("bias", shape[:1])):
            data = random.uniform(-bound, bound, dims).astype(np.float32)
            model.graph.initializer.append(onnx.numpy_helper.from_array(data, f"{name}_{part}"))
    return model


def digits() -> tuple[np.ndarray, np.ndarray]:
    """1797 images of handwritten digits (data/README.md), shuffled, and their labels."""
    with np.load(Path(__file__).with_name("data") / "digits.npz") as file:
        images, labels = file["images"], file["labels"]
    order = np.random.default_rng(0).permutation(len(images))
    return images[order, None].astype(np.float32) / 16, labels[order].astype(np.int64)


def main() -> None:
    """Train on four fifths of the images, and test on the others."""
    folder = Path(sys.argv[1] if len(sys.argv) > 1 else "build/samples")
    folder.mkdir(parents=True, exist_ok=True)
    model = network()
    images, labels = digits()
    train, test = slice(0, 1437), slice(1437, None)

    # One model that performs a training step: it maps parameters and state to the loss and their next values.
    step = graphopt.train_step(model, "cross_entropy:logits,labels", "adam", learning_rate=2e-3)
    step.save(folder / "step.onnx")

    # The loop needs only onnxruntime, in any language: the output new.w is fed as w in the next step.
    session = onnxruntime.InferenceSession(folder / "step.onnx", providers=["CPUExecutionProvider"])
    names = [output.name for output in session.get_outputs()]
    carried, random = dict(step.initial), np.random.default_rng(0)
    for epoch in range(8):
        losses = []
        for batch in np.split(random.permutation(1437)[:1408], 44):
            feeds = {"images": images[train][batch], "labels": labels[train][batch]}
            rate = np.array(2e-3 * 0.7**epoch, np.float32)
            loss, *new = session.run(names, {**feeds, **carried, "learning_rate": rate})
            carried = {name.removeprefix("new."): value for name, value in zip(names[1:], new, strict=True)}
            losses.append(loss)
        print(f"epoch {epoch}: loss {np.mean(losses):.4f}")

    # The network with the trained parameters.
    trained, _ = graphopt.unlift_parameters(model, {w: carried[w] for w in step.plan.parameters})
    graphopt.save(trained, folder / "trained.onnx")
    logits = graphopt.run(trained, {"images": images[test]})["logits"]
    accuracy = float(np.mean(logits.argmax(1) == labels[test]))
    print(f"test accuracy {accuracy:.1%} ({len(logits)} images)")
    assert accuracy >= 0.97


if __name__ == "__main__":
    main()
