"""Parameters of models: selection among initializers, conversion to inputs and back, and files."""
