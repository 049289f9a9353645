"""Kernels of the loop IR for NVIDIA GPUs: device code in CUDA C++, and the launches of its host part."""
