"""What operators are to loop nests, one file a family; see :mod:`graphopt.fusion.operator_table`."""
