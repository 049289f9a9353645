"""Profiles of runs; specialized variants of a model, behind guards, with the general model as the way out."""
