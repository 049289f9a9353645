"""Parameters of models: which initializers they are, made inputs and back, and in files of their own."""
