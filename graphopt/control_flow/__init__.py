"""Loops and conditionals as passes and gradients read them: trip counts, carried values, branches."""
