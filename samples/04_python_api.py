"""Load, optimize, verify, run and save a model from Python.

python samples/04_python_api.py [FOLDER TO WRITE TO]
"""

from __future__ import annotations

import sys
from pathlib import Path

import models
import numpy as np

import graphopt

folder = Path(sys.argv[1] if len(sys.argv) > 1 else "build/samples")
folder.mkdir(parents=True, exist_ok=True)
path = models.write("transformer", folder)

# `optimize` does not modify its argument, and verifies the result before returning it.
original = graphopt.load_model(path)
optimized, report = graphopt.optimize(original)
print(report)

# Inputs by name, outputs in the model's order.
feeds = {
    "input_ids": np.arange(14).reshape(2, 7),
    "attention_mask": np.ones((2, 7), np.int64),
}
before = graphopt.run(original, feeds)
after = graphopt.run(optimized, feeds)
for name, a in before.items():
    print(f"{name}: shape {a.shape}, max |Δ| {np.abs(a - after[name]).max():.1e}")

# The same comparison as a separate step.
print(graphopt.verify(original, optimized))

graphopt.save(optimized, folder / "transformer.opt.onnx")
