"""onnxruntime: devices, sessions and their options, kernels of the installed build, crash risks."""
