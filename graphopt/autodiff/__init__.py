"""Reverse-mode automatic differentiation: a model of ordinary operators that also returns gradients.

``rules/`` has the gradient rules of operators, one file per family; :mod:`graphopt.autodiff.registry`
declares and finds them, :mod:`graphopt.autodiff.reverse` applies them to a graph,
:mod:`graphopt.autodiff.joint` builds the model, and :mod:`graphopt.autodiff.split` splits it into a forward
and a backward model.
"""
