"""Measure the time and other costs of models."""
