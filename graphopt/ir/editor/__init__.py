"""The Editor: the only interface that changes a model."""
