"""The pass that converts a model to another opset."""
