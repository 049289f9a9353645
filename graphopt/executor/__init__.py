"""Run a model again and again, specialized for the inputs that come, as PyTorch's profiling executor does."""
