"""Operators that draw random numbers."""

from __future__ import annotations

from graphopt.autodiff.rule_registry import non_differentiable

likes = non_differentiable(
    "RandomNormalLike", "RandomUniformLike", reason="it depends only on shapes", quiet=True
)
draws = non_differentiable("Bernoulli", "Multinomial", reason="samples are not differentiable")
