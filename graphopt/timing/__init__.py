"""Timing models and measuring what else they cost."""
