"""Inputs for running a model: given by the user, or made up to suit it."""
