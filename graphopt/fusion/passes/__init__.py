"""Passes that make groups which run as kernels."""
