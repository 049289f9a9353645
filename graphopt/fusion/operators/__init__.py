"""Operators in loop nests, one file per family; see :mod:`graphopt.fusion.operator_table`."""
