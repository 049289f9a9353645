"""C code that the back ends have in common: sizes, statements, checks of a run, and the table of kernels."""
