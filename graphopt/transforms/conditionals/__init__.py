"""Passes on If nodes."""
