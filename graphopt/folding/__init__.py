"""Computing nodes whose inputs are constant, with the kernels of the runtime."""
