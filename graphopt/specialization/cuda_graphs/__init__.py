"""CUDA graphs: the kernels of a run, captured once for each set of shapes and then replayed by one launch.

The counterpart of ``cudagraphify`` of PyTorch's ``compile_fx``, on the option ``enable_cuda_graph`` of
onnxruntime's CUDA provider.
"""
