"""Bundles: a folder with one model per variant, shared weights, and a plan that selects the variant."""
