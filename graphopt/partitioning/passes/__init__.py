"""Passes that make groups of nodes, and take them apart."""
