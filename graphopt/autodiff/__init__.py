"""Reverse mode: a model that also returns gradients, made of ordinary operators.

``rules/`` has the operators' gradients, one file a family (:mod:`graphopt.autodiff.registry` finds
them); :mod:`graphopt.autodiff.reverse` walks a graph, and :mod:`graphopt.autodiff.joint` makes the model.
"""
