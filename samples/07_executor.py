"""Run a model by an executor, which profiles its inputs and specializes the model for them.

python samples/07_executor.py [FOLDER TO WRITE TO]
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

# Two static specializations, then a dynamic one.
strategy = graphopt.ExecutorOptions(strategy=graphopt.FusionStrategy.parse("static:2,dynamic:1"))
executor = graphopt.compile(path, strategy)

for length in (16, 16, 16, 32, 32, 32, 7, 7, 9, 11):
    outputs = executor(
        {"input_ids": np.ones((1, length), np.int64), "attention_mask": np.ones((1, length), np.int64)}
    )
    print(f"length {length:2}: {executor.last_plan}")

# The plans, the number of runs of each, and the reasons for running the general plan.
print(executor.debug_state())

# The original model, for comparison.
with graphopt.optimized_execution(False):
    feeds = {"input_ids": np.ones((1, 16), np.int64), "attention_mask": np.ones((1, 16), np.int64)}
    plain = executor(feeds)
fast = executor(feeds)
for name, a in plain.items():
    print(f"{name}: max |Δ| {np.abs(a - fast[name]).max():.1e}")
