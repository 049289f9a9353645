"""Measured optimization: only rewrites that pay are kept, and the result is never slower than the input."""
