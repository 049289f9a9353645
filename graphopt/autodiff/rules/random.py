"""Operators that draw random numbers."""

from __future__ import annotations

from graphopt.autodiff.registry import non_differentiable

likes = non_differentiable(
    "RandomNormalLike", "RandomUniformLike", reason="it depends on shapes alone", quiet=True
)
draws = non_differentiable(
    "Bernoulli", "Multinomial", reason="what is drawn does not change with its probability"
)
