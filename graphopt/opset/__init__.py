"""Conversion of nodes between opset versions."""
