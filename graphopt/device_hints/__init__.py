"""Hints about a model on a device: TF32, and bfloat16."""
