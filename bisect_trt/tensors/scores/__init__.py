"""What a model's outputs on a set of samples are worth, as one number."""
