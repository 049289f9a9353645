"""Observers of a run: dumps, logs, counts and reports. They never change the model."""
