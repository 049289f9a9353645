"""Passes that choose the layout of tensors."""
