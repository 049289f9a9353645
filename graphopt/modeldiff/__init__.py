"""Differences between two models, or between two states of one: found, matched and printed."""
