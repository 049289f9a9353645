"""Passes on plain dataflow: folding, elimination, canonical forms."""
