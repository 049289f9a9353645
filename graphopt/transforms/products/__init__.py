"""Passes that merge or split matrix products."""
