"""Gradients against PyTorch's over operators' attributes; one module a family, found by itself.

    python -m benchmarks.torch_gradients                    all families
    python -m benchmarks.torch_gradients --only 'conv|pool'     cases whose labels match
    python -m benchmarks.torch_gradients --docs docs/gradients.md   rebuild the table there

A family is a module with a function ``cases()`` that yields :class:`benchmarks.torch_gradients.common.Case`.
Needs torch, which is in the extra ``torch``.
"""
