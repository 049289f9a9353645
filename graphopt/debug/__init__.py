"""Debugging: bisect a pipeline, reduce a model, and write reproducers."""
