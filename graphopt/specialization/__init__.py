"""Record profiles of runs, and build variants of a model for them."""
