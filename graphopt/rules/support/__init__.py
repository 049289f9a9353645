"""Helpers shared by families of rules."""
