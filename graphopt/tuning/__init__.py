"""The gate: rewrites stay only if they pay on the target, and the result is never slower than the input."""
