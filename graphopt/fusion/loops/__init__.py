"""Kernels as loops over elements: the representation between a group of nodes and the code of a device."""
