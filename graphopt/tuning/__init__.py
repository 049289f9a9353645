"""Measured optimization: rewrites stay only if they pay, and the result is never slower than the input."""
