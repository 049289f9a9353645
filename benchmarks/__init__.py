"""What the numbers in docs/benchmarks.md come from; each module here is a command that reproduces some."""
