"""Operators that draw random numbers."""

from __future__ import annotations

from graphopt.autodiff.registry import stops

likes = stops("RandomNormalLike", "RandomUniformLike", because="it depends on shapes alone", quiet=True)
draws = stops("Bernoulli", "Multinomial", because="what is drawn does not change with its probability")
