"""Find out what is to blame: bisect a pipeline, shrink a model, keep what shows a fault."""
