"""Measured optimization: rewrites are kept only if they pay, and the result is never slower than the input."""
