"""Passes around gradients and autodiff subgraphs."""
