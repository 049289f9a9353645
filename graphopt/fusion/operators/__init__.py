"""Operators in loop nests, one file a family; see :mod:`graphopt.fusion.operator_table`."""
