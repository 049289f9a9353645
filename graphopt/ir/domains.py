"""Domains of operators."""

from __future__ import annotations

#: onnxruntime's own operators.
MICROSOFT = "com.microsoft"

RUNTIME_DOMAINS = frozenset({"", "ai.onnx.ml", MICROSOFT})
"""Domains of which onnxruntime may run an operator of its own where the model has a function of that name."""
