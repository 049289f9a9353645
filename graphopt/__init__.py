"""graphopt: an optimizing compiler driver for ONNX models."""
