"""Passes on profiles, guards and specialized types."""
