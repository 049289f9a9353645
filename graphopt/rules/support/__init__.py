"""Helpers that families of rules share."""
