"""Passes on functions of the model."""
