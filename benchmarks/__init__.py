"""Commands that reproduce the numbers in docs/benchmarks.md."""

import os

#: Benchmarks measure optimizations, not the reuse of their results.
os.environ["GRAPHOPT_CACHE"] = "false"
