"""Shape inference: facts about the values of a model, over symbolic dims."""
