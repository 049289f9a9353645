"""Measured optimization: only profitable rewrites are kept, and the result is never slower than the input."""
