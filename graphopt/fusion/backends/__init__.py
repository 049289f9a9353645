"""Back ends, one package each; see :mod:`graphopt.fusion.backend`."""
