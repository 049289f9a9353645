"""Differential testing of two models."""
