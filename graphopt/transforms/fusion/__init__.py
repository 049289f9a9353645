"""Passes that make fused operators and fusion groups."""
