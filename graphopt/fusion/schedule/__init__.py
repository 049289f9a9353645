"""How a kernel is computed, whatever the device: merged loops, and passes over reduced axes."""
