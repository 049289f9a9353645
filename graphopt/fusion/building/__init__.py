"""Native kernels as a library of custom operators that onnxruntime loads: its source in C, and its build."""
