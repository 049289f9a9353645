"""Passes, one file each, found by walking this package; pipelines of them, and their text."""
