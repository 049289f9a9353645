"""Training: optimizers, models that perform a training step, and the training loop."""
