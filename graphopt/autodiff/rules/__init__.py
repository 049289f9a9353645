"""Gradients of operators, one file per family. The registry walks this package to find the files."""
