"""Commands that reproduce the numbers in docs/benchmarks.md."""
