"""Reverse-mode automatic differentiation: a model of ordinary operators that also returns gradients.

``rules/`` has the gradient rules of operators, one file per family;
:mod:`graphopt.autodiff.rule_registry` declares and finds them, :mod:`graphopt.autodiff.reverse_mode` applies
them to a graph, :mod:`graphopt.autodiff.joint_graph` builds the model, and
:mod:`graphopt.autodiff.split_joint` splits it into a forward and a backward model.
"""
