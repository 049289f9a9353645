"""Training: optimizers, models that do one step of it, and the loop over them."""
