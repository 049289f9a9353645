"""Compare gradients with PyTorch's for many attributes of operators, with one module per family.

    python -m benchmarks.torch_gradients                    all families
    python -m benchmarks.torch_gradients --only 'conv|pool'     cases whose labels match
    python -m benchmarks.torch_gradients --docs docs/gradients.md   rebuild the table there

A family is a module with a function ``cases()`` that yields :class:`benchmarks.torch_gradients.common.Case`.
Requires torch (the extra ``torch``).
"""
