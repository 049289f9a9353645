"""How a kernel is computed, before it is printed for some device: merged loops, and passes over reduced axes."""
