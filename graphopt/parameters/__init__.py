"""Parameters of models: which initializers they are, lifting them to inputs and back, and files."""
