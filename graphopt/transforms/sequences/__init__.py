"""Passes that replace sequences by tensors."""
