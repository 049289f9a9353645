"""Passes on Loop and Scan."""
