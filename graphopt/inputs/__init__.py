"""Inputs for running a model: given by the user, or generated to suit it."""
