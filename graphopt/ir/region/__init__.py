"""Regions of graphs: clone, extract, outline, inline."""
