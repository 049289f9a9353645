"""Names in models of groups that have kernels."""

#: The domain of functions that are groups of nodes, and of the operators that their kernels are.
DOMAIN = "graphopt.native"
#: The model's metadata entry with the types that the kernels are made for, by name of the function. It does
#: not lie in the private namespace ``graphopt.``, which saving strips: kernels are built from it later.
SIGNATURES = "graphopt:kernels"
