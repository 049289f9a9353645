"""Passes that prepare models for inference."""
