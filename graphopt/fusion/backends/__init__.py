"""Back ends, which print kernels as source and compile them."""
