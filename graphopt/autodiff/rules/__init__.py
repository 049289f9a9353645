"""Gradients of operators, one file a family. Each is found by walking this package."""
